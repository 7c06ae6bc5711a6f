"""Measures a column of a sample: how much is missing, how many values, how long its lists, how skewed its numbers.

Letters: B rows.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from contracts.columns import lists, numbers
from contracts.dense import signed_log1p

GROWING = 1.1
"""Where all of a sample has so many times the values of its first half, there are more to come."""


@dataclass(frozen=True, kw_only=True)
class NumberShape:
    """How numbers are spread; infinities and NaN count as missing.

    Args:
        low: Smallest.
        early: 5 % quantile.
        high: Largest.
        skew: Third standardised moment.
        log_skew: The same after ``sign(x) log(1 + |x|)``.
        is_whole: Whether all are whole.
    """

    low: float
    early: float
    high: float
    skew: float
    log_skew: float
    is_whole: bool


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One column.

    Args:
        type: Its Arrow type; of a list that of its values.
        is_list: Whether a row holds several values.
        rows: Looked at, B.
        missing: Share of rows without value.
        distinct: Values, of a list those of all rows together.
        is_growing: Whether the sample seems not to have seen all of them.
        lengths: Of a list: shortest, 95 % quantile and longest.
        shape: Of numbers.
        not_finite: NaN and infinite numbers, which an encoder refuses.
    """

    type: pa.DataType
    is_list: bool
    rows: int
    missing: float
    distinct: int
    is_growing: bool
    lengths: tuple[int, int, int] | None = None
    shape: NumberShape | None = None
    not_finite: int = 0

    @property
    def is_text(self) -> bool:
        return kinds.is_string(self.type) or kinds.is_large_string(self.type)

    @property
    def is_integer(self) -> bool:
        return kinds.is_integer(self.type)

    @property
    def is_time(self) -> bool:
        return kinds.is_timestamp(self.type) or kinds.is_date(self.type)


def profile_of(array: pa.Array, *, is_whole: bool = False) -> Profile:
    """Measure a column; of a whole dataset there are no values to come.

    Example:
        >>> found = profile_of(pa.array([["a"], ["a", "b"], None]))
        >>> found.is_list, found.distinct, found.lengths, round(found.missing, 2)
        (True, 2, (1, 2, 2), 0.33)
    """
    missing = array.null_count / max(len(array), 1)
    if is_list_type(array.type):
        values, lengths = _values(array)
        return _profile(values, len(array), missing, lengths, is_whole)
    return _profile(array, len(array), missing, None, is_whole)


def is_list_type(type_: pa.DataType) -> bool:
    """Whether a row holds several values."""
    return kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_)


def list_lengths(array: pa.Array) -> np.ndarray:
    """int64 [B]; 0 where null."""
    return lists(array, "values").lengths


def _values(array: pa.Array) -> tuple[pa.Array, tuple[int, int, int] | None]:
    parts = lists(array, "values")
    present = parts.lengths if parts.nulls is None else parts.lengths[~parts.nulls]
    if not len(present):
        return parts.present_values(), None
    shape = int(present.min()), int(np.ceil(np.quantile(present, 0.95))), int(present.max())
    return parts.present_values(), shape


def _profile(
    values: pa.Array, rows: int, missing: float, lengths: tuple[int, int, int] | None, is_whole: bool
) -> Profile:
    present = values.drop_null()
    half = len(pc.unique(present.slice(0, len(present) // 2))) if len(present) else 0
    distinct = len(pc.unique(present)) if len(present) else 0
    shape, not_finite = None, 0
    if len(present) and (kinds.is_integer(values.type) or kinds.is_floating(values.type)):
        found = numbers(present)
        finite = found[np.isfinite(found)]
        not_finite = len(found) - len(finite)
        shape = _shape(finite) if len(finite) else None
    return Profile(
        type=values.type,
        is_list=lengths is not None,
        rows=rows,
        missing=missing,
        distinct=distinct,
        is_growing=not is_whole and bool(half) and distinct > GROWING * half,
        lengths=lengths,
        shape=shape,
        not_finite=not_finite,
    )


def _shape(values: np.ndarray) -> NumberShape:
    return NumberShape(
        low=float(values.min()),
        early=float(np.quantile(values, 0.05)),
        high=float(values.max()),
        skew=_skew(values),
        log_skew=_skew(signed_log1p(values)),
        is_whole=bool((values == np.round(values)).all()),
    )


def _skew(values: np.ndarray) -> float:
    deviation = values - values.mean()
    spread = float(np.sqrt((deviation**2).mean()))
    return float((deviation**3).mean()) / spread**3 if spread > 1e-12 * max(1.0, abs(float(values.mean()))) else 0.0
