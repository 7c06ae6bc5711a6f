"""The one encoder: raw values of a side to ids and floats, for training, indexing and serving alike.

NumPy and Arrow only. Columns in, columns out; rows are worked off in slices, so that memory stays small beside the
result, and within a slice each distinct value is hashed or looked up once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from contracts.columns import WrongTypeError, log_error, slice_column
from contracts.config_errors import show
from contracts.errors import LogError
from contracts.feature_encoders import feature_encoders
from contracts.layout import SideLayout, side_layout
from contracts.rows_in_work import RowsInWork
from contracts.schema import Feature, FeatureSchema, Side
from contracts.shared_features import Key, Place, SharedFeatures, copy_values, places

Columns: TypeAlias = Mapping[str, pa.Array | pa.ChunkedArray] | pa.Table | pa.RecordBatch

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Encoded:
    """Rows of one side, positions as in :class:`contracts.layout.SideLayout`.

    Args:
        ids: int32 [B, num_ids]; 0 padding, 1 missing, 2 out of vocabulary.
        floats: float32 [B, num_floats]; finite.
    """

    ids: np.ndarray
    floats: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: np.ndarray) -> "Encoded":
        """The rows at these positions, or where a bool mask is true."""
        return Encoded(self.ids[rows], self.floats[rows])


@dataclass(frozen=True)
class Coverage:
    """How many rows had no value, or one outside the vocabulary, by column (``country``, ``watch.tag``).

    A row of a multi_categorical or sequence column counts once. Hashed tables know no value outside.
    """

    rows: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    out_of_vocabulary: dict[str, int] = field(default_factory=dict)

    def merge(self, other: "Coverage") -> "Coverage":
        """The coverage of both sets of rows together."""
        return Coverage(
            self.rows + other.rows,
            _sum(self.missing, other.missing),
            _sum(self.out_of_vocabulary, other.out_of_vocabulary),
        )


@dataclass(frozen=True)
class Fault:
    """A rule that rows of a column break: the first such row of the batch, and how many there are."""

    column: str
    rule: str
    row: int
    count: int


@dataclass(frozen=True)
class EncodedBatch:
    """What :meth:`Encoder.encode` returns.

    Args:
        encoded: All rows; an invalid one is zeros.
        invalid: bool [B], rows that a rule refuses.
        coverage: Over all rows, the invalid ones included.
        faults: Why rows are invalid, one entry a column and rule.
    """

    encoded: Encoded
    invalid: np.ndarray
    coverage: Coverage
    faults: tuple[Fault, ...]


class Encoder:
    """Encodes raw columns of one side as its schema says.

    Args:
        schema: A fitted schema.
        side: query, ad or pair.

    Raises:
        ConfigError: The schema is not fitted.

    Example:
        >>> from contracts.schema import Feature, FeatureSchema, Table
        >>> country = Feature(side="query", kind="categorical", table="country")
        >>> tables = {"country": Table(dim=4, vocabulary=("DE", "FR"))}
        >>> schema = FeatureSchema(
        ...     tasks=("click",), objectives={"click": "click"}, tables=tables, features={"country": country}
        ... )
        >>> batch = Encoder(schema, "query").encode({"country": pa.array(["FR", None, "XX"])})
        >>> batch.encoded.ids.tolist()
        [[4], [1], [2]]
    """

    def __init__(self, schema: FeatureSchema, side: Side) -> None:
        schema.require_fitted()
        self.schema = schema
        self.side: Side = side
        self.features: dict[str, Feature] = schema.side_features(side)
        self.layout: SideLayout = side_layout(schema, side)
        self.encoders = feature_encoders(schema, self.layout)
        self.columns: tuple[str, ...] = tuple(name for encoder in self.encoders for name in encoder.columns)

    def encode(
        self,
        columns: Columns,
        *,
        num_rows: int | None = None,
        event_time: np.ndarray | None = None,
        absent: Literal["raise", "missing"] = "raise",
        invalid: Literal["raise", "mark"] = "raise",
        source: str = "",
        shared: SharedFeatures | None = None,
    ) -> EncodedBatch:
        """Encode B rows.

        Args:
            columns: The raw columns by name; others than :attr:`columns` are ignored.
            num_rows: B, for when ``columns`` may hold none.
            event_time: int64 [B] microseconds UTC, the requests' times; needed where the side has an age.
            absent: What an absent column is: an error, or missing in every row.
            invalid: What a row is that breaks a rule (NaN, an event later than the request, ...): an error, or marked.
            source: File or dataset, for messages.
            shared: What encoders of other models made of the same columns; takes in what this one adds.

        Raises:
            LogError: An absent column, an Arrow type that the feature cannot read, or an invalid row.
            ValueError: ``event_time`` is not one time a row.
        """
        if shared is not None and self._keys is not None and self._keys in shared.batches:
            return shared.batches[self._keys]
        present = self._present(columns, absent, source)
        rows = _num_rows(present, num_rows, source)
        if event_time is not None and event_time.shape != (rows,):
            raise ValueError(f"event_time must hold one time a row, got shape {event_time.shape} for {rows} rows")
        ids = np.zeros((rows, self.layout.num_ids), np.int32)
        floats = np.zeros((rows, self.layout.num_floats), np.float32)
        marked = np.zeros(rows, bool)
        coverage = Coverage()
        faults: dict[tuple[str, str], Fault] = {}
        for start in range(0, rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, rows)
            arrays = {name: slice_column(column, start, stop) for name, column in present.items()}
            times = None if event_time is None else event_time[start:stop]
            work = RowsInWork(arrays, ids[start:stop], floats[start:stop], times)
            self._run(work, source, shared, start)
            if work.faults:
                found = _first_faults(work, start)
                if invalid == "raise":
                    raise _refused(next(iter(found.values())), present, source)
                faults = _merge_faults(faults, found)
                if shared is not None:
                    shared.detach(work, start)
                _clear(work, marked[start:stop])
            coverage = coverage.merge(Coverage(stop - start, work.missing, work.out_of_vocabulary))
        batch = EncodedBatch(Encoded(ids, floats), marked, coverage, tuple(faults.values()))
        if shared is not None and self._keys is not None:
            shared.batches[self._keys] = batch
        return batch

    def _present(self, columns: Columns, absent: str, source: str) -> dict[str, pa.Array | pa.ChunkedArray]:
        if isinstance(columns, Mapping):
            present = {name: columns[name] for name in self.columns if name in columns}
        else:
            names = set(columns.schema.names)
            present = {name: columns.column(name) for name in self.columns if name in names}
        if absent == "raise" and len(present) < len(self.columns):
            lacking = ", ".join(repr(name) for name in self.columns if name not in present)
            start = f"{source}: " if source else ""
            raise LogError(f"{start}column {lacking} is missing, expected for side {self.side!r} of the schema")
        return present

    @cached_property
    def _places(self) -> dict[str, Place]:
        return places(self.schema, self.layout)

    @cached_property
    def _keys(self) -> tuple[Key, ...] | None:
        """What decides all of a batch: its features in order. None where one of them cannot be shared."""
        found = [self._places[encoder.name].key for encoder in self.encoders if encoder.name in self._places]
        return tuple(found) if len(found) == len(self.encoders) else None

    def _run(self, work: RowsInWork, source: str, shared: SharedFeatures | None, start: int) -> None:
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and refused
                taken = []
                for encoder in self.encoders:
                    place = self._places.get(encoder.name) if shared is not None else None
                    if shared is None or place is None:
                        encoder.encode(work)
                    elif (kept := shared.take(place, work, start)) is not None:
                        taken.append((kept, place))
                    else:
                        encoder.encode(work)
                        shared.keep(place, work, start)
                copy_values(taken, work)
        except WrongTypeError as error:
            raise log_error(source, work.reading, str(error)) from None
        except (UnicodeDecodeError, pa.ArrowInvalid) as error:
            raise log_error(source, work.reading, f"cannot be read: {error}") from None


def _num_rows(present: Mapping[str, pa.Array | pa.ChunkedArray], num_rows: int | None, source: str) -> int:
    lengths = {name: len(column) for name, column in present.items()}
    rows = num_rows if num_rows is not None else next(iter(lengths.values()), 0)
    for name, length in lengths.items():
        if length != rows:
            raise log_error(source, name, f"has {length} rows, expected {rows}")
    return rows


def _first_faults(work: RowsInWork, start: int) -> dict[tuple[str, str], Fault]:
    return {
        (column, rule): Fault(column, rule, start + int(rows.argmax()), int(rows.sum()))
        for column, rule, rows in work.faults
    }


def _refused(fault: Fault, present: Mapping[str, pa.Array | pa.ChunkedArray], source: str) -> LogError:
    got = show(present[fault.column][fault.row].as_py())
    return log_error(
        source, fault.column, f"{fault.rule}, got {got} in row {fault.row} ({fault.count} such rows so far)"
    )


def _clear(work: RowsInWork, marked: np.ndarray) -> None:
    """Mark the rows with faults and empty them, so that no NaN leaves the encoder."""
    for _, _, rows in work.faults:
        marked |= rows
    work.ids[marked] = 0
    work.floats[marked] = 0.0


def _merge_faults(
    known: dict[tuple[str, str], Fault], new: dict[tuple[str, str], Fault]
) -> dict[tuple[str, str], Fault]:
    merged = dict(known)
    for key, fault in new.items():
        first = known.get(key, fault)
        count = fault.count + (first.count if key in known else 0)
        merged[key] = Fault(first.column, first.rule, first.row, count)
    return merged


def _sum(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}
