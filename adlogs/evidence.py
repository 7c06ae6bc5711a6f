"""What columns of a sample tell: whether one is constant within groups, and whether it knows an outcome too well.

Letters: B rows.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from contracts.columns import numbers
from contracts.metrics import auc

LEAK_AUC, DOUBTFUL_AUC = 0.95, 0.88
"""No honest feature alone tells clicks this well; good models of all features together stay below the second."""

MIN_EACH = 30
"""Positive and negative rows below which an AUC is chance."""

MIN_GROUPS = 20
MAX_CATEGORIES = 50
_ALMOST_ALWAYS = 0.98
_MOSTLY, _LIFT = 0.5, 10
_CHANCE = 1e-6  # that rows with a value have the outcome by chance


@dataclass(frozen=True)
class Suspicion:
    """Why a column may be known only after the outcome.

    Args:
        reason: In words, with figures.
        sure: Whether it is better left out until someone has looked.
    """

    reason: str
    sure: bool


@dataclass(frozen=True)
class Constancy:
    """How constant a column is within groups of rows.

    Args:
        share: Of the groups of two or more rows, those with one value alone.
        groups: Such groups.
    """

    share: float
    groups: int

    @property
    def holds(self) -> bool:
        """Whether the column belongs to the group, as far as the groups can tell."""
        return self.groups >= MIN_GROUPS and self.share >= _ALMOST_ALWAYS


def codes_of(array: pa.Array) -> np.ndarray:
    """int64 [B]: a number for each distinct value, lists included; null is -1."""
    if kinds.is_list(array.type) or kinds.is_large_list(array.type) or kinds.is_fixed_size_list(array.type):
        array = pa.array([None if value is None else repr(value) for value in array.to_pylist()], pa.string())
    if not kinds.is_dictionary(array.type):
        array = array.dictionary_encode()
    return array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)


def constancy(values: np.ndarray, groups: np.ndarray) -> Constancy:
    """Measure it by codes, int64 [B] each; rows of a negative group are left out.

    Example:
        >>> constancy(np.array([1, 1, 2, 3, 4]), np.array([0, 0, 1, 1, 2]))
        Constancy(share=0.5, groups=2)
    """
    known = groups >= 0
    values, groups = values[known], groups[known]
    order = np.lexsort((values, groups))
    values, groups = values[order], groups[order]
    same_group = np.diff(groups) == 0
    several = np.unique(groups[1:][same_group])
    varied = np.unique(groups[1:][same_group & (np.diff(values) != 0)])
    return Constancy(1 - len(varied) / len(several) if len(several) else 0.0, len(several))


def suspicion(column: pa.Array, outcome: np.ndarray, task: str) -> Suspicion | None:
    """Whether a column knows more of an outcome than can be known before it.

    Args:
        column: Values of B rows.
        outcome: 1, 0, or NaN where it is not known; float64 [B].
        task: Its name, for the words.
    """
    known = ~np.isnan(outcome)
    if min(np.sum(outcome[known] == 1), np.sum(outcome[known] == 0)) < MIN_EACH:
        return None
    rows, labels = column.filter(pa.array(known)), outcome[known]
    present = _is_set(rows)
    if present is None:
        return None
    if 0 < present.sum() < _ALMOST_ALWAYS * len(present):
        positive = labels[present].mean()
        if positive >= _ALMOST_ALWAYS and labels.mean() ** present.sum() < _CHANCE:
            return Suspicion(f"set only where {task} is 1 ({positive:.0%} of {present.sum():,} rows)", True)
        if positive >= _MOSTLY and positive >= _LIFT * labels.mean():
            usual = f"{positive:.0%} of {present.sum():,} rows, against {labels.mean():.1%} of all"
            return Suspicion(f"set mostly where {task} is 1 ({usual})", False)
    scores = _scores(rows, labels)
    if scores is None:
        return None
    found = auc(labels, scores)
    found = max(found, 1 - found)
    if found < DOUBTFUL_AUC or np.isnan(found):
        return None
    return Suspicion(f"tells {task} alone with an AUC of {found:.3f}", bool(found >= LEAK_AUC))


def shown_alone(column: pa.Array, shown: np.ndarray) -> Suspicion | None:
    """Whether a column of pairs has values only where the ad was shown, bool [B]: then no request knows it."""
    present = np.asarray(column.is_valid())
    if shown.all() or not shown.any() or present[~shown].any() or present[shown].mean() < 0.5:
        return None
    return Suspicion("set only for ads that were shown, which is not known when they are ranked", True)


def _is_set(array: pa.Array) -> np.ndarray | None:
    """bool [B]: neither missing nor zero nor empty; None where that means nothing."""
    if _is_number(array.type):
        values = numbers(array)
        return ~np.isnan(values) & (values != 0)
    if kinds.is_string(array.type) or kinds.is_large_string(array.type):
        return np.asarray(pc.not_equal(array, "").fill_null(False))
    return np.asarray(array.is_valid()) if kinds.is_timestamp(array.type) else None


def _scores(array: pa.Array, labels: np.ndarray) -> np.ndarray | None:
    """What may order rows: a number itself, missing lowest; of few categories, the outcome's mean in each."""
    if _is_number(array.type):
        values = numbers(array)
        return np.where(np.isnan(values), np.nanmin(values, initial=0.0) - 1, values)
    if kinds.is_timestamp(array.type):
        return None
    codes = codes_of(array) + 1
    if codes.max(initial=0) > MAX_CATEGORIES:
        return None
    return (np.bincount(codes, labels) / np.maximum(np.bincount(codes), 1))[codes]


def _is_number(type_: pa.DataType) -> bool:
    return kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_)
