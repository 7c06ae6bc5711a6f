"""Encodes the rows of one feature into its columns of ids or floats, one small class a kind of feature.

Letters: B rows, L ``max_length``, D ``length`` of an embedding feature, K values kept of all rows together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from contracts import columns as raw
from contracts.dense import DenseTransform, dense_transform
from contracts.hashing import TextIds, text_ids
from contracts.layout import FloatColumn, IdColumn, SequenceLayout, SideLayout
from contracts.schema import MISSING, NUM_RESERVED, OUT_OF_VOCABULARY, FeatureSchema

MIN_AGE_S, MAX_AGE_S = 60, 365 * 24 * 3600
NOT_FINITE = "holds NaN, an infinity or a number beyond float32, expected a finite number or null"
UNALIGNED = "has another number of events than the rest of its sequence, expected lists of equal length"
FUTURE = "holds an event later than the request, expected none"
UNSORTED = "is not in the order of time, expected the oldest event first"


@dataclass
class RowsInWork:
    """A slice of rows being encoded: where values are read from, and where ids, floats and findings go.

    Args:
        arrays: Column name to its array of B rows; absent columns are not in it.
        ids: int32 [B, num_ids], zeros at first.
        floats: float32 [B, num_floats], zeros at first.
        event_time: int64 [B] microseconds UTC of the requests, or None.
        missing: Rows without a value, by column.
        out_of_vocabulary: Rows with a value that a vocabulary lacks, by column.
        faults: What is wrong: column, rule, bool [B].
        reading: The column being read, for the message when its type is wrong.
    """

    arrays: Mapping[str, pa.Array]
    ids: np.ndarray
    floats: np.ndarray
    event_time: np.ndarray | None
    missing: dict[str, int] = field(default_factory=dict)
    out_of_vocabulary: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[str, str, np.ndarray]] = field(default_factory=list)
    reading: str = ""

    def read(self, column: str) -> pa.Array | None:
        """The column's array, or None where it is absent."""
        self.reading = column
        return self.arrays.get(column)

    def fault(self, column: str, rule: str, rows: np.ndarray) -> None:
        """Note the rows that break a rule, if there are any."""
        if rows.any():
            self.faults.append((column, rule, rows))


@dataclass(frozen=True)
class CategoricalEncoder:
    """One id a row."""

    name: str
    position: int
    ids_of: TextIds
    is_vocabulary: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, work: RowsInWork) -> None:
        array = work.read(self.name)
        out = work.ids[:, self.position]
        if array is None:
            out[:] = MISSING
            work.missing[self.name] = len(out)
            return
        out[:] = raw.value_ids(array, self.ids_of)
        work.missing[self.name] = int(np.count_nonzero(out == MISSING))
        if self.is_vocabulary:
            work.out_of_vocabulary[self.name] = int(np.count_nonzero(out == OUT_OF_VOCABULARY))


@dataclass(frozen=True)
class MultiCategoricalEncoder:
    """The first L ids of a list, padded with 0; an empty list is all padding, a null one a single missing id."""

    name: str
    positions: slice
    ids_of: TextIds
    is_vocabulary: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, work: RowsInWork) -> None:
        array = work.read(self.name)
        out = work.ids[:, self.positions]
        if array is None:
            out[:, 0] = MISSING
            work.missing[self.name] = len(out)
            return
        lists = raw.lists(array, raw.TEXT_TYPES)
        step = np.arange(out.shape[1])
        kept = step < lists.lengths[:, None]
        out[kept] = lists.encode((lists.starts[:, None] + step)[kept], self.ids_of)
        if lists.nulls is not None:
            out[lists.nulls, 0] = MISSING
        work.missing[self.name] = array.null_count
        if self.is_vocabulary:
            work.out_of_vocabulary[self.name] = _rows_with(out, OUT_OF_VOCABULARY)


@dataclass(frozen=True)
class DenseEncoder:
    """One float a row."""

    name: str
    position: int
    transform: DenseTransform

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, work: RowsInWork) -> None:
        array = work.read(self.name)
        out = work.floats[:, self.position]
        if array is None:
            out[:] = self.transform.missing
            work.missing[self.name] = len(out)
            return
        values = raw.numbers(array)
        nulls = raw.null_mask(array)
        with np.errstate(over="ignore", invalid="ignore"):
            out[:] = self.transform.apply(values)
            bad = ~(np.isfinite(values) & np.isfinite(out))
        if nulls is not None:
            out[nulls] = self.transform.missing
            bad &= ~nulls
        work.missing[self.name] = array.null_count
        work.fault(self.name, NOT_FINITE, bad)


@dataclass(frozen=True)
class EmbeddingEncoder:
    """D floats a row, taken as they are; a missing one is zeros."""

    name: str
    positions: slice

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, work: RowsInWork) -> None:
        array = work.read(self.name)
        out = work.floats[:, self.positions]
        if array is None:
            work.missing[self.name] = len(out)
            return
        lists = raw.lists(array, raw.NUMBER_TYPES)
        length = out.shape[1]
        whole = lists.lengths == length
        wrong_length = ~whole if lists.nulls is None else ~(whole | lists.nulls)
        with np.errstate(over="ignore"):
            values = raw.numbers(lists.values).astype(np.float32)
        out[whole] = values[lists.starts[whole, None] + np.arange(length)]
        work.missing[self.name] = array.null_count
        work.fault(self.name, f"has a list of another length, expected {length} numbers or null", wrong_length)
        work.fault(self.name, NOT_FINITE, ~np.isfinite(out).all(axis=1))


@dataclass(frozen=True)
class FieldEncoder:
    """One field of a sequence: ids by table, or by age where ``edges_us`` is given (int64 microseconds)."""

    column: str
    positions: slice
    ids_of: TextIds | None
    edges_us: np.ndarray | None
    is_vocabulary: bool


@dataclass(frozen=True)
class Events:
    """The events kept of a slice of sequences, most recent first.

    Args:
        kept: bool [B, L], true where there is an event.
        from_end: int64 [L]: 1, 2, ... L.
    """

    kept: np.ndarray
    from_end: np.ndarray

    def positions(self, lists: raw.Lists) -> tuple[np.ndarray, np.ndarray]:
        """Which of the kept events a column holds (bool [B, L]), and where its values stand (int64 [K])."""
        own = self.kept if lists.nulls is None else self.kept & ~lists.nulls[:, None]
        return own, ((lists.starts + lists.lengths)[:, None] - self.from_end)[own]


@dataclass(frozen=True)
class SequenceEncoder:
    """A behaviour sequence; a null list, or an absent column, makes its field missing in every event of the row."""

    name: str
    max_length: int
    fields: tuple[FieldEncoder, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(part.column for part in self.fields)

    def encode(self, work: RowsInWork) -> None:
        found = {part.column: self._lists(work, part) for part in self.fields}
        lengths = self._lengths(work, found)
        from_end = np.arange(1, self.max_length + 1)
        events = Events(from_end <= lengths[:, None], from_end)
        for part in self.fields:
            out, lists = work.ids[:, part.positions], found[part.column]
            out[events.kept] = MISSING
            if lists is not None:
                work.reading = part.column
                self._encode_field(work, part, lists, events, out)

    def _lists(self, work: RowsInWork, part: FieldEncoder) -> raw.Lists | None:
        array = work.read(part.column)
        work.missing[part.column] = len(work.ids) if array is None else array.null_count
        expected = raw.TEXT_TYPES if part.edges_us is None else raw.INSTANT_TYPES
        return None if array is None else raw.lists(array, expected)

    def _lengths(self, work: RowsInWork, found: dict[str, raw.Lists | None]) -> np.ndarray:
        """Events a row, int64 [B]; rows whose columns disagree are faults and count no event."""
        lengths = np.zeros(len(work.ids), np.int64)
        for lists in found.values():
            if lists is not None:
                lengths = np.maximum(lengths, lists.lengths)
        unaligned = np.zeros(len(lengths), bool)
        for column, lists in found.items():
            if lists is not None:
                differs = lists.lengths != lengths
                if lists.nulls is not None:
                    differs &= ~lists.nulls
                work.fault(column, UNALIGNED, differs)
                unaligned |= differs
        lengths[unaligned] = 0
        return lengths

    def _encode_field(
        self, work: RowsInWork, part: FieldEncoder, lists: raw.Lists, events: Events, out: np.ndarray
    ) -> None:
        own, positions = events.positions(lists)
        if part.edges_us is not None:
            out[own] = self._age_ids(work, part.column, part.edges_us, lists, own, positions)
        elif part.ids_of is not None:
            out[own] = lists.encode(positions, part.ids_of)
        if part.is_vocabulary:
            work.out_of_vocabulary[part.column] = _rows_with(out, OUT_OF_VOCABULARY)

    def _age_ids(
        self,
        work: RowsInWork,
        column: str,
        edges_us: np.ndarray,
        lists: raw.Lists,
        own: np.ndarray,
        positions: np.ndarray,
    ) -> np.ndarray:
        if work.event_time is None:
            raise ValueError(f"{column} is an age: encoding it needs event_time, the requests' times")
        nulls = raw.null_mask(lists.values)
        times = raw.instants(lists.values)[positions]
        known = np.ones(len(times), bool) if nulls is None else ~nulls[positions]
        rows = np.nonzero(own)[0]
        age_us = work.event_time[rows] - times
        self._check_times(work, column, rows[known], age_us[known])
        ids = np.searchsorted(edges_us, age_us, side="right").astype(np.int32) + NUM_RESERVED
        ids[~known] = MISSING
        return ids

    def _check_times(self, work: RowsInWork, column: str, rows: np.ndarray, age_us: np.ndarray) -> None:
        """Most recent first, ages never fall; ``rows`` [K] is the row of each age."""
        future, unsorted = np.zeros(len(work.ids), bool), np.zeros(len(work.ids), bool)
        future[rows[age_us < 0]] = True
        falls = (age_us[1:] < age_us[:-1]) & (rows[1:] == rows[:-1])
        unsorted[rows[1:][falls]] = True
        work.fault(column, FUTURE, future)
        work.fault(column, UNSORTED, unsorted & ~future)


FeatureEncoder = CategoricalEncoder | MultiCategoricalEncoder | DenseEncoder | EmbeddingEncoder | SequenceEncoder


def age_edges(buckets: int) -> np.ndarray:
    """int64 microseconds: ``buckets - 4`` geometric edges from one minute to one year, in whole seconds.

    Example:
        >>> (age_edges(6) // 1_000_000).tolist()
        [60, 31536000]
    """
    return np.geomspace(MIN_AGE_S, MAX_AGE_S, buckets - NUM_RESERVED - 1).round().astype(np.int64) * 1_000_000


def feature_encoders(schema: FeatureSchema, layout: SideLayout) -> tuple[FeatureEncoder, ...]:
    """One encoder a feature of the layout's side; the schema is fitted."""
    ids_of = {name: text_ids(table) for name, table in schema.all_tables().items()}
    bags = [_bag_encoder(schema, bag, ids_of) for bag in layout.bags]
    dense = [_float_encoder(schema, column) for column in layout.dense]
    sequences = [_sequence_encoder(schema, sequence, ids_of) for sequence in layout.sequences]
    return (*bags, *dense, *sequences)


def _bag_encoder(schema: FeatureSchema, bag: IdColumn, ids_of: dict[str, TextIds]) -> FeatureEncoder:
    is_vocabulary = schema.tables[bag.table].vocabulary is not None
    if schema.features[bag.name].kind == "categorical":
        return CategoricalEncoder(bag.name, bag.start, ids_of[bag.table], is_vocabulary)
    return MultiCategoricalEncoder(bag.name, _slice(bag), ids_of[bag.table], is_vocabulary)


def _float_encoder(schema: FeatureSchema, column: FloatColumn) -> FeatureEncoder:
    feature = schema.features[column.name]
    if feature.kind == "dense":
        return DenseEncoder(column.name, column.start, dense_transform(feature))
    return EmbeddingEncoder(column.name, _slice(column))


def _sequence_encoder(schema: FeatureSchema, sequence: SequenceLayout, ids_of: dict[str, TextIds]) -> SequenceEncoder:
    kinds = schema.features[sequence.name].fields or {}
    tables = schema.all_tables()
    fields = []
    for part in sequence.fields:
        is_age = kinds[part.name].kind == "age"
        fields.append(
            FieldEncoder(
                column=f"{sequence.name}.{part.name}",
                positions=_slice(part),
                ids_of=None if is_age else ids_of[part.table],
                edges_us=age_edges(tables[part.table].num_rows) if is_age else None,
                is_vocabulary=tables[part.table].vocabulary is not None,
            )
        )
    return SequenceEncoder(sequence.name, sequence.max_length, tuple(fields))


def _slice(column: IdColumn | FloatColumn) -> slice:
    return slice(column.start, column.start + column.width)


def _rows_with(ids: np.ndarray, wanted: int) -> int:
    return int(np.count_nonzero((ids == wanted).any(axis=1)))
