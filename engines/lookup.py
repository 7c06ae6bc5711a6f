"""Encoded ids and floats to the dense tensors that exported graphs take: look-up and pooling in NumPy.

The serving twin of ``modeling.tables.FeatureTables``; graphs never hold a table. What never changes between calls is
kept apart from what a request brings: a :class:`TableLookup` holds the static assets (tables, which feature reads which
of them, where its embedding goes, what is pooled), made once when a bundle is opened and shared by all threads; a call
takes the request's tensors alone (ids, whose zeros are lengths and masks, and floats) and allocates its results anew.
Shapes: B rows, L events, E width of an event (its fields' embeddings side by side), F width of the flat input, W ids of
one group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from contracts import compiled
from contracts.errors import MismatchError
from contracts.layout import IdColumn, SequenceLayout, SideLayout
from contracts.schema import Pooling
from engines.buckets import bucket_for, used_length
from engines.int8_tables import StoredTable, merged, stored_table

TABLE_PREFIX = "tables."
MERGE_LIMIT_BYTES = 16 << 20
"""Tables up to this size are copied side by side, so that all of one width and kind need a single take. A larger one
stays where it is: mapped from the bundle, shared by all workers, its take dominated by memory rather than by calls."""

MANY_ROWS, FEW_EVENTS = 256, 8
"""From so many rows and up to so many ids of a bag on, arrays added one after another are summed faster."""


class LookedUp(NamedTuple):
    """Dense inputs of one side.

    ``flat`` is float32 [B, F]: floats, one mean embedding per bag, and one per sequence field if sequences are pooled.
    ``sequences`` maps a name to (float32 [B, L, E] with zeros at padding, bool [B, L] true at events); L is the
    sequence's ``max_length``, or a smaller bucket that holds the longest history of the call.
    """

    flat: np.ndarray
    sequences: dict[str, tuple[np.ndarray, np.ndarray]]


class TableLookup:
    """Looks up and pools the features of one side.

    An empty bag or history pools to zeros, whatever the table's padding row holds.

    Args:
        layout: Positions of the side's ids and floats.
        tables: ``tables.<name>`` to float32 [rows, dim], or to int8 [rows, dim] beside ``tables.<name>.scale`` float32
            [rows] (``engines.int8_tables``); others may be present.
        pool_sequences: Whether ``flat`` ends with the mean of each sequence field.
        length_buckets: Lengths, ascending, to which sequences are cut where all histories of a call fit. None: every
            sequence has its ``max_length``.
        keep_events: Whether calls return the events of sequences too, which costs more than their means.

    Raises:
        MismatchError: A table is missing, of another width than the layout says, or int8 without its scales.
    """

    def __init__(
        self,
        layout: SideLayout,
        tables: Mapping[str, np.ndarray],
        *,
        pool_sequences: bool,
        length_buckets: Sequence[int] = (),
        keep_events: bool = True,
    ) -> None:
        self._layout, self._kept = layout, layout.sequences if keep_events else ()
        self._lengths = {
            sequence.name: (*(length for length in length_buckets if length < sequence.max_length), sequence.max_length)
            for sequence in layout.sequences
        }
        self._flat_dim = layout.flat_dim(pool_sequences)
        self._groups = tuple(
            _Group(uses, tables) for uses in _grouped(_uses(layout, pool_sequences, keep_events), tables)
        )

    def __call__(self, ids: np.ndarray, floats: np.ndarray) -> LookedUp:
        """Return the dense inputs of int32 ``ids`` [B, num_ids] and float32 ``floats`` [B, num_floats].

        Raises:
            MismatchError: An id lies outside its table; among merged tables it would have read a neighbour's row.
        """
        flat = np.empty((len(ids), self._flat_dim), np.float32)
        flat[:, : self._layout.num_floats] = floats
        sequences = {sequence.name: self._unfilled(ids, sequence) for sequence in self._kept} if self._kept else {}
        for group in self._groups:
            group.fill(ids, flat, sequences)
        return LookedUp(flat, sequences)

    def _unfilled(self, ids: np.ndarray, sequence: SequenceLayout) -> tuple[np.ndarray, np.ndarray]:
        first, lengths = sequence.fields[0], self._lengths[sequence.name]
        mask = ids[:, first.start : first.start + first.width] != 0
        length = bucket_for(used_length(mask), lengths) if len(lengths) > 1 else sequence.max_length
        return np.empty((len(ids), length, sequence.dim), np.float32), mask[:, :length]


@dataclass(frozen=True)
class _Use:
    """One use of a table: where its ids lie and where its embeddings go."""

    column: IdColumn
    flat_start: int | None
    sequence: str | None = None
    event_start: int = 0


def _uses(layout: SideLayout, pool_sequences: bool, keep_events: bool) -> list[_Use]:
    """All uses in layout order, which is also the order of the flat input behind its floats."""
    pooled = [piece.start for piece in layout.flat(pool_sequences)[len(layout.dense) :]]
    uses = [_Use(column, start) for column, start in zip(layout.bags, pooled, strict=False)]
    field_starts = iter(pooled[len(layout.bags) :])
    for sequence in layout.sequences:
        event_start = 0
        for column in sequence.fields:
            kept = sequence.name if keep_events else None
            uses.append(_Use(column, next(field_starts, None), kept, event_start))
            event_start += column.dim
    return uses


def _grouped(uses: Sequence[_Use], tables: Mapping[str, np.ndarray]) -> list[list[_Use]]:
    """Uses that share a take: those of one large table, or those of all small tables of one width and kind."""
    groups: dict[object, list[_Use]] = {}
    for use in uses:
        table = _table(tables, use.column)
        is_large = table.nbytes > MERGE_LIMIT_BYTES
        groups.setdefault(use.column.table if is_large else (use.column.dim, table.scales is None), []).append(use)
    return list(groups.values())


def _table(tables: Mapping[str, np.ndarray], column: IdColumn) -> StoredTable:
    name = f"{TABLE_PREFIX}{column.table}"
    if name not in tables:
        raise MismatchError(f"weights hold no {name}, which feature {column.name} looks up")
    if tables[name].ndim != 2 or tables[name].shape[1] != column.dim:
        raise MismatchError(f"{name} has shape {tables[name].shape}, feature {column.name} expects width {column.dim}")
    return stored_table(tables, name)


class _Group:
    """Uses of one matrix, served by one take: first single ids, then bags by width, then events."""

    def __init__(self, uses: Sequence[_Use], tables: Mapping[str, np.ndarray]) -> None:
        uses = sorted(uses, key=lambda use: (use.sequence is not None, *_pooled_as(use)))
        members = {use.column.table: _table(tables, use.column) for use in uses}
        first_rows = dict(zip(members, np.cumsum([0, *(len(table) for table in members.values())]), strict=False))
        widths = [use.column.width for use in uses]
        self._names = [use.column.name for use in uses for _ in range(use.column.width)]
        self._columns = np.concatenate([use.column.start + np.arange(use.column.width) for use in uses])
        self._offsets = np.repeat([first_rows[use.column.table] for use in uses], widths)
        self._limits = np.repeat([len(members[use.column.table]) for use in uses], widths).astype(np.uint32)
        self._matrix, self._padding_is_zero = _matrix(list(members.values()))
        starts = np.cumsum([0, *widths]).tolist()
        self._pooled_at_once = _pooled_at_once(uses, members, first_rows, self._matrix)
        self._pools = _pools(uses, starts)
        self._events = [
            (use.sequence, slice(use.event_start, use.event_start + use.column.dim), start)
            for use, start in zip(uses, starts, strict=False)
            if use.sequence is not None
        ]

    def fill(self, ids: np.ndarray, flat: np.ndarray, sequences: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        kernels = compiled.kernels()
        uses = self._pooled_at_once
        if kernels is not None and uses is not None and kernels.pool_rows(ids, self._matrix.values, uses, flat):
            return
        picked = ids.take(self._columns, axis=1)  # [B, W]
        if (picked.view(np.uint32) >= self._limits).any():  # the view makes negative ids large
            self._refuse(picked)
        embeddings = self._matrix.take(picked + self._offsets)  # [B, W, dim]
        if not self._padding_is_zero:
            embeddings[picked == 0] = 0
        for pool in self._pools:
            flat[:, pool.flat] = pool(embeddings, picked)
        for name, place, start in self._events:
            events = sequences[name][0]
            events[:, :, place] = embeddings[:, start : start + events.shape[1]]

    def _refuse(self, picked: np.ndarray) -> None:
        row, column = np.argwhere(picked.view(np.uint32) >= self._limits)[0]
        raise MismatchError(
            f"feature {self._names[column]}: id {picked[row, column]} is outside its table "
            f"of {self._limits[column]} rows"
        )


def _pooled_at_once(
    uses: Sequence[_Use], members: Mapping[str, StoredTable], first_rows: Mapping[str, int], matrix: StoredTable
) -> np.ndarray | None:
    """The uses as ``contracts.kernels.pool_rows`` takes them [U, 6]; None where it cannot: int8, or events to keep."""
    values = matrix.values
    is_plain = matrix.scales is None and values.dtype == np.float32 and values.flags.c_contiguous
    if not is_plain or any(use.flat_start is None or use.sequence is not None for use in uses):
        return None
    return np.array(
        [
            (
                *(use.column.start, use.column.width, first_rows[use.column.table], len(members[use.column.table])),
                *(use.flat_start, use.column.pooling == "mean"),
            )
            for use in uses
        ],
        np.int64,
    )


@dataclass(frozen=True)
class _Pool:
    """``count`` uses of ``width`` ids each that lie side by side in a group and are pooled together."""

    start: int
    count: int
    width: int
    pooling: Pooling
    flat: np.ndarray | slice

    def __call__(self, embeddings: np.ndarray, picked: np.ndarray) -> np.ndarray:
        """Means or sums over the ids that are not padding: [B, W, dim] to [B, count * dim]. Padding is already zero."""
        rows, dim = len(picked), embeddings.shape[-1]
        here = slice(self.start, self.start + self.count * self.width)
        if self.width == 1:
            return embeddings[:, here].reshape(rows, self.count * dim)
        parts = embeddings[:, here].reshape(rows, self.count, self.width, dim)
        pooled = _sum(parts)
        if self.pooling == "mean":
            present = picked[:, here].reshape(rows, self.count, self.width) != 0
            pooled /= np.maximum(_sum(present.view(np.int8)), 1)[:, :, None].astype(np.float32)
        return pooled.reshape(rows, self.count * dim)


def _sum(parts: np.ndarray) -> np.ndarray:
    """Sums [B, N, ...] over the third axis of [B, N, W, ...], its numbers added in their order."""
    if len(parts) < MANY_ROWS or parts.shape[2] > FEW_EVENTS:
        if parts.dtype == np.int8:
            return parts.sum(axis=2)
        return np.einsum("bnwd->bnd", parts)  # at 500 rows 2.5 times as fast as a sum over the axis
    total = parts[:, :, 0] + parts[:, :, 1]
    for place in range(2, parts.shape[2]):
        total += parts[:, :, place]
    return total


def _pools(uses: Sequence[_Use], starts: Sequence[int]) -> list[_Pool]:
    """Pools of uses that follow one another and are pooled alike; those that keep their events are left out."""
    pools = []
    places = [(use, start) for use, start in zip(uses, starts, strict=False) if use.flat_start is not None]
    for (width, pooling), members in groupby(places, key=lambda place: _pooled_as(place[0])):
        here = list(members)
        pools.append(_Pool(here[0][1], len(here), width, pooling, _flat_columns([use for use, _ in here])))
    return pools


def _pooled_as(use: _Use) -> tuple[int, Pooling]:
    return use.column.width, use.column.pooling


def _matrix(tables: list[StoredTable]) -> tuple[StoredTable, bool]:
    """One matrix for a group, and whether the padding rows in it are zero. A large table is used where it lies."""
    if len(tables) == 1 and tables[0].nbytes > MERGE_LIMIT_BYTES:
        return tables[0], False
    return merged(tables), True


def _flat_columns(uses: Sequence[_Use]) -> np.ndarray | slice:
    """Flat columns of equally wide uses; a slice where they lie side by side, which copies faster."""
    starts = np.array([use.flat_start for use in uses], np.intp)
    columns = (starts[:, None] + np.arange(uses[0].column.dim)).ravel()
    if (np.diff(columns) == 1).all():
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
