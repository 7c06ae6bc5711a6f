"""Whether a teacher is worth learning from: better on its validation part than always predicting the base rate.

Normalised entropy is the model's log loss over that of the base rate (He et al. 2014, "Practical lessons from
predicting clicks on ads at Facebook"): at 1 or more the model knows nothing, and a student of it learns nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

from contracts.errors import AdsieveError

WORTHLESS = 1.0
MIN_EACH = 30
"""Positives and negatives below which a figure is chance, and judges nobody."""

NEXT = (
    "train on more of the log, for more epochs, or with features that tell more: `adsieve schema infer` proposes them, "
    "and `adsieve heavy evaluate` judges a run on other days"
)


class TeacherRefused(AdsieveError):
    """A teacher is not sealed: it is no better than the limit on some head."""


def worthless_heads(metrics: Mapping[str, Any], limit: float = WORTHLESS) -> list[str]:
    """Each head whose normalised entropy reaches the limit, in words.

    Args:
        metrics: Of each task, as ``task_metrics`` of heavy_ranker/evaluate.py gives them.
        limit: The least normalised entropy that counts as worthless.

    Example:
        >>> found = {"rows": 200, "positives": 40, "normalised_entropy": 1.02}
        >>> worthless_heads({"click": found}), worthless_heads({"click": found | {"positives": 2}})
        (['click has a normalised entropy of 1.020 on 200 rows'], [])
    """
    return [
        f"{task} has a normalised entropy of {found['normalised_entropy']:.3f} on {found['rows']:,} rows"
        for task, found in metrics.items()
        if _is_judged(found) and found["normalised_entropy"] >= limit
    ]


def warning(metrics: Mapping[str, Any]) -> str | None:
    """What is said of a teacher with a worthless head; None of any other."""
    heads = worthless_heads(metrics)
    if not heads:
        return None
    return (
        f"{'; '.join(heads)} of the validation part: no better than always predicting the base rate, so a student "
        f"learns nothing of it. Before you distil from it, {NEXT}"
    )


def require_worth(metrics: Mapping[str, Any], limit: float) -> list[str]:
    """Refuse a teacher that does not stay below the limit on every head.

    Args:
        metrics: Of the validation part, by task; empty without one.
        limit: Of normalised entropy.

    Returns:
        Heads that could not be judged, with the reason.

    Raises:
        TeacherRefused: Some head reaches the limit.
    """
    heads = worthless_heads(metrics, limit)
    if heads:
        raise TeacherRefused(
            f"{'; '.join(heads)} of the validation part, expected less than {limit:g}: 1 is no better than always "
            "predicting the base rate; nothing was sealed",
            next_step=f"{NEXT}; without --max-normalised-entropy (TEACHER_MAX_NE of a project) it is sealed with a "
            "warning",
        )
    if not metrics:
        return ["every head: the run has no validation part, validation_share is 0"]
    return [
        f"{task}: {found['positives']:,} positives among {found['rows']:,} rows, expected {MIN_EACH} of each kind"
        for task, found in metrics.items()
        if not _is_judged(found)
    ]


def _is_judged(found: Mapping[str, Any]) -> bool:
    positives, value = found["positives"], found["normalised_entropy"]
    return min(positives, found["rows"] - positives) >= MIN_EACH and value is not None and not math.isnan(value)
