"""What the launch gate could not judge, and why, for its record."""

from collections.abc import Iterator

from distill.compare import Comparison
from distill.evaluate import Evaluation
from distill.gate_limits import Limits
from distill.recall import POOL_SIZE, RecallReport
from distill.slices import ALL, STAGE_SLICES


def skipped(limits: Limits, evaluation: Evaluation, comparison: Comparison | None) -> Iterator[str]:
    """Every part of the log that is too small for a limit, each with what it has and what it needs.

    Args:
        limits: Applied.
        evaluation: Of the student.
        comparison: With the one that serves; None without one.
    """
    reason = _no_recall(limits, evaluation.recall)
    if reason:
        largest = f", the largest has {evaluation.largest_pool:,}" if evaluation.recall is None else ""
        yield f"recall ({reason}{largest})"
    for stage in STAGE_SLICES:
        row = evaluation.metrics(stage, evaluation.tasks[0])
        rows, requests = (0, 0) if row is None else (row.rows, row.requests)
        lacking = [
            f"{found:,} of {least:,} {what}"
            for found, least, what in ((rows, limits.min_rows, "rows"), (requests, limits.min_requests, "requests"))
            if found < least
        ]
        if lacking:
            yield f"stage {stage} ({', '.join(lacking)})"
    small = {
        (row.stage, row.slice, row.value, row.head, row.against)
        for row in (comparison.rows if comparison is not None else ())
        if row.slice != ALL and (row.rows < limits.min_rows or row.requests < limits.min_requests)
    }
    if small:
        yield f"{len(small):,} slices of fewer than {limits.min_rows:,} rows or {limits.min_requests:,} requests"


def cuts(limits: Limits, recall: RecallReport | None) -> bool:
    """Whether there are enough whole pools with more ads than survivors: else recall says nothing."""
    return not _no_recall(limits, recall)


def _no_recall(limits: Limits, recall: RecallReport | None) -> str:
    """Why recall is not judged; empty where it is."""
    if recall is None:
        return f"0 pools of {POOL_SIZE:,} or more ads"
    if recall.requests < limits.min_requests:
        return f"{recall.requests:,} of {limits.min_requests:,} pools of {POOL_SIZE:,} or more ads"
    if recall.pool_size[1] <= limits.survivors:
        return f"nothing is cut: pools of at most {recall.pool_size[1]:,} ads"
    return ""


def too_little(limits: Limits, requests: int, pairs: int) -> str:
    """What is said where nothing could be judged at all."""
    return (
        f"nothing could be judged: {requests:,} requests, min_requests {limits.min_requests:,}; "
        f"{pairs:,} pairs, min_rows {limits.min_rows:,}"
    )
