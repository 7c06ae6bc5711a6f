"""Encodes behaviour sequences: aligned list columns, most recent event first, with the age of each event.

Letters: B rows, L ``max_length``, K events kept of all rows together.
"""

from dataclasses import dataclass

import numpy as np

from contracts import columns as raw
from contracts.hashing import TextIds
from contracts.layout import SequenceLayout
from contracts.rows_in_work import RowsInWork, rows_with
from contracts.schema import MISSING, NUM_RESERVED, OUT_OF_VOCABULARY, FeatureSchema

MIN_AGE_S, MAX_AGE_S = 60, 365 * 24 * 3600
UNALIGNED = "has another number of events than the rest of its sequence, expected lists of equal length"
FUTURE = "holds an event later than the request, expected none"
UNSORTED = "is not in the order of time, expected the oldest event first"


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
        present = {column: lists for column, lists in found.items() if lists is not None}
        lengths = np.zeros(len(work.ids), np.int64)
        for lists in present.values():
            lengths = np.maximum(lengths, lists.lengths)
        unaligned = np.zeros(len(lengths), bool)
        for column, lists in present.items():
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
            work.out_of_vocabulary[part.column] = rows_with(out, OUT_OF_VOCABULARY)

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


def age_edges(buckets: int) -> np.ndarray:
    """int64 microseconds: ``buckets - 4`` geometric edges from one minute to one year, in whole seconds.

    Example:
        >>> (age_edges(6) // 1_000_000).tolist()
        [60, 31536000]
    """
    return np.geomspace(MIN_AGE_S, MAX_AGE_S, buckets - NUM_RESERVED - 1).round().astype(np.int64) * 1_000_000


def sequence_encoder(schema: FeatureSchema, sequence: SequenceLayout, ids_of: dict[str, TextIds]) -> SequenceEncoder:
    kinds = schema.features[sequence.name].fields or {}
    tables = schema.all_tables()
    fields = []
    for part in sequence.fields:
        is_age = kinds[part.name].kind == "age"
        fields.append(
            FieldEncoder(
                column=f"{sequence.name}.{part.name}",
                positions=slice(part.start, part.start + part.width),
                ids_of=None if is_age else ids_of[part.table],
                edges_us=age_edges(tables[part.table].num_rows) if is_age else None,
                is_vocabulary=tables[part.table].vocabulary is not None,
            )
        )
    return SequenceEncoder(sequence.name, sequence.max_length, tuple(fields))
