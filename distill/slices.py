"""Which pairs belong to which slice.

A slice is a set of pairs: a stage of the funnel, cut further by a column such as the day, the objective or the country.
A winner was also a candidate and eligible, and counts in all three. Shapes: N pairs, B rows of a dataset.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
_MICROS_PER_DAY = 86_400_000_000


@dataclass(frozen=True)
class SliceColumn:
    """A column that cuts rows into slices: ``codes`` [B] are positions in ``values``."""

    codes: np.ndarray
    values: tuple[str, ...]

    def at(self, rows: np.ndarray) -> "SliceColumn":
        """The column of other rows, each of which takes the value of the row at its position here."""
        return SliceColumn(self.codes[rows], self.values)


@dataclass(frozen=True)
class Slice:
    """Pairs of one stage with one value of one column; ``rows`` are their positions."""

    stage: str
    name: str
    value: str
    rows: np.ndarray


def slice_columns(examples: Examples, names: Sequence[str] = ()) -> dict[str, SliceColumn]:
    """The columns that every report cuts by (scenario, objective and day) and those asked for, for N pairs.

    Args:
        examples: The pairs.
        names: Columns of ``requests/``, ``ads/`` or ``candidates/``, looked for in this order. Text and integers give
            one slice a value, numbers with a fraction four bands of equal size.

    Raises:
        InputError: A column exists nowhere, or holds lists.
    """
    request, objective = np.asarray(examples.request_row), np.asarray(examples.objective)
    days = pa.array(np.asarray(examples.event_time) // _MICROS_PER_DAY).cast(pa.int32()).cast(pa.date32())
    scenario_names = pa.array(examples.summary.scenario_names, pa.string())
    objective_names = pa.array(examples.summary.objective_names, pa.string())
    objectives = objective_names.take(pa.array(objective, mask=objective < 0))
    columns = {
        "scenario": by_value(scenario_names.take(pa.array(examples.scenario))).at(request),
        "objective": by_value(objectives),
        "day": by_value(days.cast(pa.string()), limit=None).at(request),
    }
    return columns | {name: _log_column(examples, name) for name in names}


def slices(stage: np.ndarray, columns: Mapping[str, SliceColumn]) -> Iterator[Slice]:
    """Every slice that holds a pair: each stage whole, then cut by each column.

    Args:
        stage: int [N], furthest stage of each pair.
        columns: By name, N rows each.
    """
    for stage_name, least in STAGE_SLICES.items():
        inside = np.flatnonzero(stage >= least)
        if len(inside):
            yield Slice(stage_name, ALL, ALL, inside)
        for name, column in columns.items():
            codes = column.codes[inside]
            order = np.argsort(codes, kind="stable")
            bounds = np.searchsorted(codes[order], np.arange(len(column.values) + 1))
            for code, value in enumerate(column.values):
                rows = inside[order[bounds[code] : bounds[code + 1]]]
                if len(rows):
                    yield Slice(stage_name, name, value, rows)


def by_value(texts: pa.Array | pa.ChunkedArray, *, limit: int | None = MAX_VALUES) -> SliceColumn:
    """One slice a value, in the order of the values; beyond ``limit`` the rarer ones share ``other``.

    Example:
        >>> by_value(pa.array(["b", "a", None, "b"])).values
        ('a', 'b', 'missing')
    """
    encoded = plain_text(texts).fill_null(MISSING).dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    found, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
    counts = Counter(dict(enumerate(np.bincount(codes, minlength=len(found)).tolist())))
    kept = {found[code] for code, _ in counts.most_common(limit)}
    values = (*sorted(kept), *([OTHER] if len(kept) < len(found) and OTHER not in kept else []))
    places = {value: place for place, value in enumerate(values)}
    mapping = np.array([places.get(value, places.get(OTHER, 0)) for value in found], np.int64)
    return SliceColumn(mapping[codes], values)


def by_band(numbers: np.ndarray) -> SliceColumn:
    """Four bands of equal size; fewer where many numbers are equal. NaN is ``missing``.

    Args:
        numbers: float [B].
    """
    present = ~np.isnan(numbers)
    if not present.any():
        return SliceColumn(np.zeros(len(numbers), np.int64), (MISSING,))
    edges = np.unique(np.quantile(numbers[present], (0.0, *_QUARTERS, 1.0)))
    inner = edges[1:-1]
    values = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)] or [f"{edges[0]:.4g}"]
    codes = np.where(present, np.searchsorted(inner, numbers, side="right"), len(values))
    return SliceColumn(codes, (*values, MISSING))


def _log_column(examples: Examples, name: str) -> SliceColumn:
    pair_rows = {"requests": examples.request_row, "ads": examples.ad_row, "candidates": np.arange(len(examples))}
    for dataset, rows in pair_rows.items():
        table = examples.columns(dataset, [name])
        if name in table.schema.names:
            return _by_kind(table[name], name).at(np.asarray(rows))
    raise InputError(f"slice {name}: no such column in requests/, ads/ or candidates/ of the log")


def _by_kind(column: pa.ChunkedArray, name: str) -> SliceColumn:
    if pt.is_nested(column.type):
        raise InputError(f"slice {name}: has type {column.type}, expected one value a row")
    if pt.is_floating(column.type):
        return by_band(column.cast(pa.float64()).fill_null(np.nan).to_numpy())
    return by_value(column.cast(pa.string()) if not pt.is_dictionary(column.type) else column)
