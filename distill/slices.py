"""Which pairs belong to which slice.

A slice is a set of pairs: a stage of the funnel, cut further by a column such as the day, the objective or the country.
A winner was also a candidate and eligible, and counts in all three. Shapes: N pairs, B rows of a dataset.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from contracts.errors import InputError
from contracts.records import plain_text
from modeling.examples import Examples

STAGE_SLICES = {"winners": 2, "candidates": 1, "eligible": 0}
"""Name of a stage's slice to the least stage of its pairs, a position in ``contracts.records.STAGES``."""

ALL, OTHER, MISSING = "all", "other", "missing"
MAX_VALUES = 20
"""Values of a column that get a slice each; the rest share one."""

_QUARTERS = (0.25, 0.5, 0.75)
_DIGITS = 18


@dataclass(frozen=True)
class SliceColumn:
    """A column that cuts rows into slices: ``codes`` [B] are positions in ``values``."""

    codes: np.ndarray
    values: tuple[str, ...]

    def at(self, rows: np.ndarray) -> "SliceColumn":
        """The column of other rows, each of which takes the value of the row at its position here."""
        return SliceColumn(self.codes[rows], self.values)


def whole(num_rows: int) -> SliceColumn:
    """A column that cuts nothing: every row has the value ``all``."""
    return SliceColumn(np.zeros(num_rows, np.int64), (ALL,))


def by_value(texts: pa.Array | pa.ChunkedArray, *, limit: int | None = MAX_VALUES) -> SliceColumn:
    """One slice a value, in the order of the values, numbers first; beyond ``limit`` the rarer ones share ``other``.

    Example:
        >>> by_value(pa.array(["b", "a", None, "b"])).values
        ('a', 'b', 'missing')
    """
    encoded = plain_text(texts).fill_null(MISSING).dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    found, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
    counts = Counter(dict(enumerate(np.bincount(codes, minlength=len(found)).tolist())))
    kept = {found[code] for code, _ in counts.most_common(limit)}
    values = (*sorted(kept, key=_natural), *([OTHER] if len(kept) < len(found) and OTHER not in kept else []))
    places = {value: place for place, value in enumerate(values)}
    mapping = np.array([places.get(value, places.get(OTHER, 0)) for value in found], np.int64)
    return SliceColumn(mapping[codes], values)


def _natural(text: str) -> tuple[bool, int, str]:
    """Sorts whole numbers of at most 18 digits by value and before other texts."""
    number = text.isascii() and text.removeprefix("-").isdigit() and len(text) <= _DIGITS
    return not number, int(text) if number else 0, text


def by_band(numbers: np.ndarray) -> SliceColumn:
    """Four bands of equal size; fewer where many numbers are equal. What is not finite is ``missing``.

    Args:
        numbers: float [B].
    """
    present = np.isfinite(numbers)
    if not present.any():
        return SliceColumn(np.zeros(len(numbers), np.int64), (MISSING,))
    edges = np.unique(np.quantile(numbers[present], (0.0, *_QUARTERS, 1.0)))
    inner = edges[1:-1]
    values = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)] or [f"{edges[0]:.4g}"]
    codes = np.where(present, np.searchsorted(inner, numbers, side="right"), len(values))
    return SliceColumn(codes, (*values, MISSING))


def log_column(examples: Examples, name: str) -> SliceColumn | None:
    """A column of ``requests/``, ``ads/`` or ``candidates/``, looked for in this order, for N pairs; None without one.

    Text and integers give one slice a value, numbers with a fraction four bands of equal size.

    Raises:
        InputError: It holds lists.
    """
    found = raw_column(examples, name)
    return None if found is None else _by_kind(found[0], name).at(found[1])


def raw_column(examples: Examples, name: str) -> tuple[pa.ChunkedArray, np.ndarray] | None:
    """The values of a column of the log, and the row of each of N pairs in them; None where no dataset has it."""
    pair_rows = {"requests": examples.request_row, "ads": examples.ad_row, "candidates": np.arange(len(examples))}
    for dataset, rows in pair_rows.items():
        table = examples.columns(dataset, [name])
        if name in table.schema.names:
            return table[name], np.asarray(rows)
    return None


def _by_kind(column: pa.ChunkedArray, name: str) -> SliceColumn:
    if pt.is_nested(column.type):
        raise InputError(f"slice {name}: has type {column.type}, expected one value a row")
    if pt.is_floating(column.type):
        return by_band(column.cast(pa.float64()).fill_null(np.nan).to_numpy())
    try:
        return by_value(column.cast(pa.string()) if not pt.is_dictionary(column.type) else column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InputError(f"slice {name}: has type {column.type}, expected text or numbers ({error})") from error
