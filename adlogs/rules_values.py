"""Rules of single values that datasets share: names, times, numbers in their range, labels.

Letters: B rows of a slice.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.log_slices import Finding, LogSlice
from contracts import columns as raw
from contracts.config_errors import one_of
from contracts.names import AUTO, is_name
from contracts.records import plain_text

NEVER = int(np.iinfo(np.int64).max)
"""A moment that no row has: stands in for a time that is not known."""

NO_SCENARIO = (
    "is no name that a release can have, expected 1 to 80 ASCII letters, digits, '.', '_' and '-', the first no sign, "
    f"and not {AUTO!r}"
)
UNKNOWN_NAME = "is not known, expected {}"
BAD_BID = "is not a bid, expected a finite number of at least 0, or null"
BAD_WEIGHT = "is not a weight, expected a finite number of at least 0, or null"
BAD_PROPENSITY = "is not a propensity, expected a number above 0 and at most 1, or null"
NOT_BINARY = "is not a label, expected 0, 1 or null"
NOT_FINITE_LOGIT = "is NaN or infinite, expected a finite logit or null"
NOT_SHOWN = "has a value although the ad was not shown, expected null"
BROKEN_CHAIN = "is positive although {} is not, expected each task only after the one before"


def unknown_text(rows: LogSlice, column: str, names: Sequence[str], *, or_null: str = " or null") -> Iterator[Finding]:
    """Texts that are none of ``names``; nulls are left to other rules."""
    array = rows.get(column)
    if array is not None and not pa.types.is_null(array.type):
        texts = plain_text(array)
        known = pc.is_in(texts, value_set=pa.array(names, pa.string()))
        unknown = pc.and_(texts.is_valid(), pc.invert(known))
        yield Finding(column, UNKNOWN_NAME.format(one_of(names) + or_null), np.asarray(unknown))


def scenario_findings(rows: LogSlice) -> Iterator[Finding]:
    """Scenarios that no release can serve; which names there are is configuration."""
    array = rows.get("scenario")
    if array is not None:
        encoded = plain_text(array).dictionary_encode()
        odd = pa.array([name == AUTO or not is_name(name) for name in encoded.dictionary.to_pylist()], pa.bool_())
        yield Finding("scenario", NO_SCENARIO, np.asarray(odd.take(encoded.indices).fill_null(False)))


def objective_findings(rows: LogSlice, names: Sequence[str]) -> Iterator[Finding]:
    return unknown_text(rows, "objective", names)


def bid_findings(rows: LogSlice) -> Iterator[Finding]:
    return number_findings(rows, "bid", BAD_BID, at_least_zero)


def number_findings(
    rows: LogSlice, column: str, rule: str, accepts: Callable[[np.ndarray], np.ndarray]
) -> Iterator[Finding]:
    """Values, nulls left out, that ``accepts`` (float64 [B] to bool [B]) does not take."""
    array = rows.get(column)
    if array is not None:
        yield Finding(column, rule, ~accepts(raw.numbers(array)) & _present(array))


def label_findings(rows: LogSlice, tasks: Sequence[str], shown: np.ndarray | None) -> Iterator[Finding]:
    """Labels are 0 or 1, of shown rows (bool [B], where known) alone, and follow the chain of tasks."""
    columns = [f"label_{task}" for task in tasks if f"label_{task}" in rows.columns]
    for column in columns:
        yield from number_findings(rows, column, NOT_BINARY, lambda values: (values == 0) | (values == 1))
        yield from unshown_findings(rows, column, shown)
    for earlier, later in pairwise(columns):
        positive = [raw.numbers(rows.columns[column]) == 1 for column in (earlier, later)]
        yield Finding(later, BROKEN_CHAIN.format(earlier), positive[1] & ~positive[0], (earlier, later))


def unshown_findings(rows: LogSlice, column: str, shown: np.ndarray | None) -> Iterator[Finding]:
    array = rows.get(column)
    if array is not None and shown is not None:
        yield Finding(column, NOT_SHOWN, _present(array) & ~shown, ("request_id", "ad_id", column))


def instants(rows: LogSlice, column: str, otherwise: np.ndarray) -> np.ndarray:
    """int64 [B] microseconds UTC; ``otherwise`` where the column is absent or null."""
    array = rows.get(column)
    if array is None:
        return otherwise
    nulls, times = raw.null_mask(array), raw.instants(array)
    return times if nulls is None else np.where(nulls, otherwise, times)


def at_least_zero(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values >= 0)


def is_share(values: np.ndarray) -> np.ndarray:
    return (values > 0) & (values <= 1)


def _present(array: pa.Array) -> np.ndarray:
    return np.asarray(array.is_valid())
