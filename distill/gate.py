"""The launch gate: whether a student may be sealed, judged slice by slice beside the one that serves.

A comparison refuses where a figure got worse by more than its limit and the paired bootstrap interval of the difference
over requests leaves no doubt that it got worse. Hundreds of figures are judged at once, so each interval is widened to
the confidence that holds for all of them together (Bonferroni): an equally good student is not refused by chance.
A floor refuses where the whole 95 % interval of a figure lies beyond it. A log too small for any of them refuses too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np

from contracts.bundle import Bundle
from contracts.errors import AdsieveError
from distill.compare import Comparison, RecallDifference, SliceDifference
from distill.evaluate import Assessment
from distill.gate_limits import Limits
from distill.gate_record import POOLS, Failure, GateRecord, Override
from distill.gate_skipped import cuts, skipped, too_little
from distill.measures import SliceMetrics
from distill.recall import STUDENT
from distill.slices import ALL
from modeling.log_requests import utc_microseconds

_SLICE_METRICS = ("kl", "auc", "gauc", "calibration")
_LEVEL = 0.95


class LaunchRefused(AdsieveError):
    """The student falls below the limits; every failing slice is on a line of its own."""


@dataclass(frozen=True)
class Gate:
    """What a student is held against before it is sealed.

    Args:
        limits: To be kept.
        against: The bundle that serves, of the same scenario; None leaves the floors.
        override: Reason for which a student that fails is sealed all the same; None refuses it.
    """

    limits: Limits = field(default_factory=Limits)
    against: Bundle | None = None
    override: str | None = None


def judge(
    gate: Gate, assessment: Assessment, comparison: Comparison | None, *, trained_until: str, event_time: np.ndarray
) -> GateRecord:
    """Hold a student against the limits.

    Args:
        gate: Limits, and what serves.
        assessment: Of the student.
        comparison: With the one that serves, on the same pairs; None without one.
        trained_until: Time of the latest request that the student has trained on, ISO 8601.
        event_time: int64 [R] microseconds UTC, of the requests judged.

    Raises:
        LaunchRefused: It fails, or nothing could be judged, and no override says otherwise.
    """
    limits, evaluation = gate.limits, assessment.evaluation
    _require_numbers(assessment)
    floors, figures = list(_floors(limits, assessment)), 0
    failures = [failure for failed, failure in floors if failed]
    if comparison is not None:
        changes, pools = _judged(limits, assessment, comparison)
        figures = len(changes) + len(pools)
        failures += _changes(limits, changes, pools)
    until = utc_microseconds(datetime.fromisoformat(trained_until))
    record = GateRecord(
        passed=not failures and len(floors) + figures > 0,
        against=gate.against.manifest.version if gate.against is not None else None,
        against_teacher=gate.against.manifest.teacher_version if gate.against is not None else None,
        teacher_version=evaluation.teacher_version,
        first=evaluation.first,
        last=evaluation.last,
        requests=evaluation.requests,
        pairs=evaluation.pairs,
        pools=0 if evaluation.recall is None else evaluation.recall.requests,
        unseen_requests=int((event_time > until).sum()),
        floors=len(floors),
        figures=figures,
        limits=limits,
        failures=failures,
        skipped=list(skipped(limits, evaluation, comparison)),
    )
    if record.passed:
        return record
    if gate.override is None:
        little = too_little(limits, evaluation.requests, evaluation.pairs)
        reason = f"{len(failures):,} figures are beyond the limits" if failures else little
        text = "\n".join([f"refused, {reason}", *record.lines()])
        raise LaunchRefused(f'{text}\nnothing was sealed; --override "REASON" seals it all the same, on record')
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return msgspec.structs.replace(record, override=Override(reason=gate.override, time=now))


def _require_numbers(assessment: Assessment) -> None:
    """What is undefined cannot fall short of anything, and must not pass for that."""
    for task in assessment.evaluation.tasks:
        row = assessment.evaluation.metrics("eligible", task)
        if row is None or np.isnan(row.kl):
            raise LaunchRefused(
                f"refused: KL of {task} on all pairs is undefined: its predictions are no numbers, or its pairs weigh "
                "nothing; no override seals that"
            )


def _floors(limits: Limits, assessment: Assessment) -> Iterator[tuple[bool, Failure]]:
    """Every floor of whole stages against the teacher, and of recall over whole pools, and whether it is missed."""
    for row in assessment.evaluation.slices:
        counts = row.rows >= limits.min_rows and row.requests >= limits.min_requests
        if counts and (row.slice, row.model, row.against) == (ALL, "student", "teacher"):
            yield from _slice_floors(limits, row)
    recall = assessment.evaluation.recall
    if recall is None or not cuts(limits, recall):
        return
    place = recall.survivors.index(limits.survivors)
    for curve in recall.curves:
        if curve.ranking == STUDENT and limits.min_recall is not None:
            failure = Failure(
                limit="min_recall",
                allowed=limits.min_recall,
                **_pools_place(curve.order, recall.requests),
                before=None,
                after=curve.recall[place],
                excess=curve.recall[place],
                low=curve.recall_low[place],
                high=curve.recall_high[place],
            )
            yield failure.high < limits.min_recall, failure


def _slice_floors(limits: Limits, row: SliceMetrics) -> Iterator[tuple[bool, Failure]]:
    off = None if limits.max_calibration_off is None else 1.0 + limits.max_calibration_off
    for limit, metric, least, most in (
        ("max_kl", "kl", None, limits.max_kl),
        ("max_normalised_entropy", "normalised_entropy", None, limits.max_normalised_entropy),
        ("min_auc", "auc", limits.min_auc, None),
        ("max_calibration_off", "calibration", off and 1.0 / off, off),
    ):
        low, high = row.intervals.get(metric, (np.nan, np.nan))
        allowed, found = getattr(limits, limit), getattr(row, metric)
        if allowed is not None and np.isfinite([found, low, high]).all():
            missed = (least is not None and high < least) or (most is not None and low > most)
            failure = Failure(
                limit=limit,
                allowed=allowed,
                **_place(row),
                metric=metric,
                before=None,
                after=found,
                excess=found,
                low=low,
                high=high,
            )
            yield missed, failure


def _judged(
    limits: Limits, assessment: Assessment, comparison: Comparison
) -> tuple[list[SliceDifference], list[tuple[RecallDifference, int]]]:
    """Differences that have a limit, enough rows and an interval; of recall with the number of its pools."""
    rows = [
        row
        for row in comparison.rows
        if row.metric in _SLICE_METRICS
        and row.rows >= limits.min_rows
        and row.requests >= limits.min_requests
        and np.isfinite([row.low, row.high]).all()
    ]
    recall = assessment.evaluation.recall
    if recall is None or not cuts(limits, recall):
        return rows, []
    found = [row for row in comparison.recall if (row.metric, row.survivors) == ("recall", limits.survivors)]
    return rows, [(row, recall.requests) for row in found]


def _changes(
    limits: Limits, rows: list[SliceDifference], pools: list[tuple[RecallDifference, int]]
) -> Iterator[Failure]:
    """Differences that are too large and beyond doubt."""
    widening = _widening(len(rows) + len(pools), limits.confidence)
    for row in rows:
        low, high = _wider(row.low, row.high, widening)
        limit, allowed, excess, sure = _excess(limits, row, low, high)
        if allowed is not None and sure and excess > allowed:
            yield Failure(
                limit=limit,
                allowed=allowed,
                **_place(row),
                metric=row.metric,
                before=row.before,
                after=row.after,
                excess=excess,
                low=low,
                high=high,
            )
    for recall, requests in pools:
        low, high = _wider(recall.low, recall.high, widening)
        if limits.recall_fall is not None and high < 0 and -recall.difference > limits.recall_fall:
            yield Failure(
                limit="recall_fall",
                allowed=limits.recall_fall,
                **_pools_place(recall.order, requests),
                before=recall.before,
                after=recall.after,
                excess=-recall.difference,
                low=low,
                high=high,
            )


def _place(row: SliceMetrics | SliceDifference) -> dict[str, Any]:
    """What names a slice, with its size."""
    names = ("stage", "slice", "value", "head", "against", "rows", "requests")
    return {name: getattr(row, name) for name in names}


def _pools_place(order: str, requests: int) -> dict[str, Any]:
    where = {"stage": POOLS, "slice": ALL, "value": ALL, "head": order, "against": "teacher"}
    return {**where, "metric": "recall", "rows": None, "requests": requests}


def _excess(limits: Limits, row: SliceDifference, low: float, high: float) -> tuple[str, float | None, float, bool]:
    """The limit's name and value, what is held against it, and whether the figure surely got worse."""
    match row.metric:
        case "kl":
            return "kl_rise", limits.kl_rise, row.worsening, low > 0
        case "calibration":
            off = max(row.after, 1.0 / row.after) - 1.0  # of 0 there is no finite interval, so it does not come here
            return "calibration_off", limits.calibration_off, off, low > 0
        case _:
            limit = f"{row.metric}_fall"
            return limit, getattr(limits, limit), -row.difference, high < 0


def _widening(figures: int, confidence: float) -> float:
    """What a 95 % interval is widened by to hold for all of several figures at once, as of a normal distribution.

    Source: Dunn 1961, "Multiple Comparisons Among Means".

    Example:
        >>> round(_widening(1, 0.95), 3), round(_widening(500, 0.95), 2)
        (1.0, 1.99)
    """
    normal = NormalDist()
    one = normal.inv_cdf((1.0 + _LEVEL) / 2.0)
    return normal.inv_cdf(1.0 - (1.0 - confidence) / (2.0 * max(figures, 1))) / one


def _wider(low: float, high: float, factor: float) -> tuple[float, float]:
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    return middle - factor * half, middle + factor * half
