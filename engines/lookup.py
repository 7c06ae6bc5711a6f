"""Encoded ids and floats to the dense tensors that exported graphs take: look-up and pooling in NumPy.

The serving twin of ``modeling.tables.FeatureTables``; graphs never hold a table. Shapes: B rows, L events, E width of
an event (its fields' embeddings side by side), F width of the flat input, W ids of one group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contracts.errors import MismatchError
from contracts.layout import IdColumn, SequenceLayout, SideLayout

TABLE_PREFIX = "tables."
MERGE_LIMIT_BYTES = 16 << 20
"""Tables up to this size are copied side by side, so that all of one width need a single take. A larger one stays where
it is: mapped from the bundle, shared by all workers, and its take dominated by memory rather than by calls."""


@dataclass(frozen=True)
class LookedUp:
    """Dense inputs of one side.

    ``flat`` is float32 [B, F]: floats, one mean embedding per bag, and one per sequence field if sequences are pooled.
    ``sequences`` maps a name to (float32 [B, L, E] with zeros at padding, bool [B, L] true at events).
    """

    flat: np.ndarray
    sequences: dict[str, tuple[np.ndarray, np.ndarray]]


class TableLookup:
    """Looks up and pools the features of one side.

    An empty bag or history pools to zeros, whatever the table's padding row holds.

    Args:
        layout: Positions of the side's ids and floats.
        tables: ``tables.<name>`` to float32 [rows, dim]; others may be present.
        pool_sequences: Whether ``flat`` ends with the mean of each sequence field.

    Raises:
        MismatchError: A table is missing or of another width than the layout says.
    """

    def __init__(self, layout: SideLayout, tables: Mapping[str, np.ndarray], *, pool_sequences: bool) -> None:
        self._layout = layout
        self._flat_dim = layout.flat_dim(pool_sequences)
        self._groups = tuple(_Group(uses, tables) for uses in _grouped(_uses(layout, pool_sequences), tables))

    def __call__(self, ids: np.ndarray, floats: np.ndarray) -> LookedUp:
        """Return the dense inputs of int32 ``ids`` [B, num_ids] and float32 ``floats`` [B, num_floats].

        Raises:
            MismatchError: An id lies outside its table; among merged tables it would have read a neighbour's row.
        """
        flat = np.empty((len(ids), self._flat_dim), np.float32)
        flat[:, : self._layout.num_floats] = floats
        sequences = {sequence.name: _unfilled(ids, sequence) for sequence in self._layout.sequences}
        for group in self._groups:
            group.fill(ids, flat, sequences)
        return LookedUp(flat, sequences)


@dataclass(frozen=True)
class _Use:
    """One use of a table: where its ids lie and where its embeddings go."""

    column: IdColumn
    flat_start: int | None
    sequence: str | None = None
    event_start: int = 0

    @property
    def is_single(self) -> bool:
        return self.column.width == 1 and self.sequence is None


def _uses(layout: SideLayout, pool_sequences: bool) -> list[_Use]:
    """All uses in layout order, which is also the order of the flat input behind its floats."""
    pooled = [piece.start for piece in layout.flat(pool_sequences)[len(layout.dense) :]]
    uses = [_Use(column, start) for column, start in zip(layout.bags, pooled, strict=False)]
    field_starts = iter(pooled[len(layout.bags) :])
    for sequence in layout.sequences:
        event_start = 0
        for column in sequence.fields:
            uses.append(_Use(column, next(field_starts, None), sequence.name, event_start))
            event_start += column.dim
    return uses


def _grouped(uses: Sequence[_Use], tables: Mapping[str, np.ndarray]) -> list[list[_Use]]:
    """Uses that share a take: those of one large table, or those of all small tables of one width."""
    groups: dict[str | int, list[_Use]] = {}
    for use in uses:
        table = _table(tables, use.column)
        key = use.column.table if table.nbytes > MERGE_LIMIT_BYTES else use.column.dim
        groups.setdefault(key, []).append(use)
    return list(groups.values())


def _table(tables: Mapping[str, np.ndarray], column: IdColumn) -> np.ndarray:
    name = f"{TABLE_PREFIX}{column.table}"
    if name not in tables:
        raise MismatchError(f"weights hold no {name}, which feature {column.name} looks up")
    if tables[name].ndim != 2 or tables[name].shape[1] != column.dim:
        raise MismatchError(f"{name} has shape {tables[name].shape}, feature {column.name} expects width {column.dim}")
    return tables[name]


class _Group:
    """Uses of one matrix, served by one take."""

    def __init__(self, uses: Sequence[_Use], tables: Mapping[str, np.ndarray]) -> None:
        uses = sorted(uses, key=lambda use: not use.is_single)  # single ids first: they fill the flat input at once
        members = {use.column.table: _table(tables, use.column) for use in uses}
        first_rows = dict(zip(members, np.cumsum([0, *(len(table) for table in members.values())]), strict=False))
        widths = [use.column.width for use in uses]
        self._names = [use.column.name for use in uses for _ in range(use.column.width)]
        self._columns = np.concatenate([use.column.start + np.arange(use.column.width) for use in uses])
        self._offsets = np.repeat([first_rows[use.column.table] for use in uses], widths)
        self._limits = np.repeat([len(members[use.column.table]) for use in uses], widths).astype(np.uint32)
        self._matrix, self._padding_is_zero = _matrix(members)
        self._dim = uses[0].column.dim
        self._num_single = sum(use.is_single for use in uses)
        self._single_columns = _flat_columns(uses[: self._num_single], self._dim)
        self._bounds = np.cumsum([0, *widths]).tolist()
        self._uses = uses

    def fill(self, ids: np.ndarray, flat: np.ndarray, sequences: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        picked = ids.take(self._columns, axis=1)  # [B, W]
        if (picked.view(np.uint32) >= self._limits).any():  # the view makes negative ids large
            self._refuse(picked)
        embeddings = self._matrix.take(picked + self._offsets, axis=0)  # [B, W, dim]
        if not self._padding_is_zero:
            embeddings[picked == 0] = 0
        if self._num_single:
            flat[:, self._single_columns] = embeddings[:, : self._num_single].reshape(
                len(ids), self._num_single * self._dim
            )
        for position in range(self._num_single, len(self._uses)):
            use, here = self._uses[position], slice(self._bounds[position], self._bounds[position + 1])
            if use.flat_start is not None:
                flat[:, use.flat_start : use.flat_start + self._dim] = _mean(embeddings[:, here], picked[:, here])
            if use.sequence is not None:
                events = sequences[use.sequence][0]
                events[:, :, use.event_start : use.event_start + self._dim] = embeddings[:, here]

    def _refuse(self, picked: np.ndarray) -> None:
        row, column = np.argwhere(picked.view(np.uint32) >= self._limits)[0]
        raise MismatchError(
            f"feature {self._names[column]}: id {picked[row, column]} is outside its table "
            f"of {self._limits[column]} rows"
        )


def _matrix(members: Mapping[str, np.ndarray]) -> tuple[np.ndarray, bool]:
    """One matrix for a group, and whether the padding rows in it are zero. A large table is used where it lies."""
    tables = list(members.values())
    if len(tables) == 1 and tables[0].nbytes > MERGE_LIMIT_BYTES:
        return tables[0], False
    copies = [np.array(table, np.float32) for table in tables]
    for table in copies:
        table[0] = 0
    return np.concatenate(copies), True


def _flat_columns(uses: Sequence[_Use], dim: int) -> np.ndarray | slice:
    """Flat columns of single ids; a slice where they lie side by side, which copies faster."""
    starts = np.array([use.flat_start for use in uses], np.intp)
    columns = (starts[:, None] + np.arange(dim)).ravel()
    if len(columns) and (np.diff(columns) == 1).all():
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns


def _mean(embeddings: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Mean over the ids that are not padding: [B, L, dim] to [B, dim]. Padding is already zero."""
    counts = np.count_nonzero(ids, axis=1)
    return embeddings.sum(axis=1) / np.maximum(counts, 1)[:, None].astype(np.float32)


def _unfilled(ids: np.ndarray, sequence: SequenceLayout) -> tuple[np.ndarray, np.ndarray]:
    first = sequence.fields[0]
    embeddings = np.empty((len(ids), sequence.max_length, sequence.dim), np.float32)
    return embeddings, ids[:, first.start : first.start + first.width] != 0
