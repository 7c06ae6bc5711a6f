"""Turns padded ids into bags of rows, many features at a time, and looked-up bags into model inputs.

Shapes: B rows of one side, K columns of one kind, L sequence length, E width of one event, D width of a table.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.errors import MismatchError
from contracts.layout import IdColumn, SequenceLayout, SideLayout
from contracts.schema import Table


@dataclass(frozen=True)
class SideInputs:
    """What one side of a batch gives to a model.

    Args:
        flat: [B, flat_dim] float32: the floats, one mean-pooled embedding per bag, and one per sequence field where
            sequences are pooled, in the order of ``SideLayout.flat``. Empty bags and sequences are zeros.
        sequences: Per sequence that keeps its events: embeddings [B, L, E], the fields side by side in layout order,
            zeros where padded, and mask [B, L], True at an event. Empty where sequences are pooled.
    """

    flat: Tensor
    sequences: dict[str, tuple[Tensor, Tensor]]


class Stack:
    """Where the rows of each table lie once all tables of one width are stacked in one matrix.

    Args:
        tables: The schema's tables by name; those named in ``used`` are stacked, in the order of their names.
        used: Names of the tables that the model reads.
    """

    def __init__(self, tables: Mapping[str, Table], used: Iterable[str]) -> None:
        self.tables = {name: tables[name] for name in sorted(set(used))}
        self.starts: dict[str, int] = {}
        self.rows_per_dim: dict[int, int] = {}
        for name, table in self.tables.items():
            self.starts[name] = self.rows_per_dim.get(table.dim, 0)
            self.rows_per_dim[table.dim] = self.starts[name] + table.num_rows

    def limits(self, layout: SideLayout) -> Tensor:
        """int32 [num_ids], the number of rows of each id column's table."""
        columns = [*layout.bags, *(field for sequence in layout.sequences for field in sequence.fields)]
        rows = [[self.tables[column.table].num_rows] * column.width for column in columns]
        return torch.tensor([limit for repeated in rows for limit in repeated], dtype=torch.int32)

    def rows(self, name: str) -> slice:
        """The rows of one table in the matrix of its width."""
        return slice(self.starts[name], self.starts[name] + self.tables[name].num_rows)


class Gather:
    """Collects the bags of a whole step, then looks them up with one call per table width."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Tensor]] = defaultdict(list)
        self._lengths: dict[int, list[Tensor]] = defaultdict(list)
        self._found: dict[int, tuple[Tensor, ...]] = {}

    def add(self, dim: int, rows: Tensor, lengths: Tensor) -> tuple[int, int]:
        """Ask for bags: ``rows`` of the stacked matrix, flattened bag by bag, ``lengths`` a bag. Returns a ticket."""
        self._rows[dim].append(rows)
        self._lengths[dim].append(lengths)
        return dim, len(self._rows[dim]) - 1

    def run(self, look_up: Callable[[int, Tensor, Tensor], Tensor]) -> None:
        """Do the look-ups; ``look_up(dim, rows, lengths)`` gives the mean of each bag, [bags, D]."""
        for dim, rows in self._rows.items():
            lengths = self._lengths[dim]
            found = look_up(dim, torch.cat(rows), torch.cat(lengths))
            self._found[dim] = found.split([len(part) for part in lengths])

    def found(self, ticket: tuple[int, int]) -> Tensor:
        """The bags of one ticket, [bags, D]."""
        dim, part = ticket
        return self._found[dim][part]


class SideRequest:
    """The look-ups of one side: asked for on construction, assembled once the gather has run.

    Padding ids never become part of a bag, so that they neither count in a mean nor train.

    Args:
        gather: Takes the bags.
        stack: Gives each table's first row.
        layout: Of the side.
        ids: [B, num_ids], any integer type.
        pool_sequences: Pool each sequence field into one bag a row, instead of one bag an event.

    Raises:
        MismatchError: An id lies outside its table; stacked, it would read and train a row of another one.
    """

    def __init__(self, gather: Gather, stack: Stack, layout: SideLayout, ids: Tensor, *, pool_sequences: bool) -> None:
        if len(ids) and (ids.amax(0) >= stack.limits(layout).to(ids)).any():
            raise MismatchError(
                f"{layout.side}: an id lies outside its table; expected rows encoded by the same schema"
            )
        self._gather, self._stack, self._ids = gather, stack, ids
        self._singles = self._add_singles([column for column in layout.bags if column.width == 1])
        wide = [column for column in layout.bags if column.width > 1]
        self._sums: dict[int, Tensor] = {}
        fields = [field for sequence in layout.sequences for field in sequence.fields] if pool_sequences else []
        self._wide = {column.start: self._add_wide(column) for column in wide + fields}
        self._pooled_starts = [column.start for column in (*layout.bags, *fields)]
        self._events = {} if pool_sequences else {s.name: self._add_events(s) for s in layout.sequences}

    def _add_singles(self, columns: list[IdColumn]) -> dict[tuple[int, int], list[int]]:
        """Columns of one id a row: [B, K] of one width asked for together. Returns the columns of each ticket."""
        by_dim: dict[int, list[IdColumn]] = defaultdict(list)
        for column in columns:
            by_dim[column.dim].append(column)
        tickets = {}
        for dim, group in by_dim.items():
            starts = [column.start for column in group]
            ids = self._ids[:, starts]
            first_rows = torch.tensor([self._stack.starts[c.table] for c in group], dtype=ids.dtype, device=ids.device)
            present = ids != 0
            rows = (ids + first_rows)[present]
            tickets[self._gather.add(dim, rows, present.reshape(-1).int())] = starts
        return tickets

    def _add_wide(self, column: IdColumn) -> tuple[int, int]:
        """A column of several ids a row, [B, width]: one bag a row."""
        ids = self._ids[:, column.start : column.start + column.width]
        present = ids != 0
        rows, lengths = ids[present] + self._stack.starts[column.table], present.sum(1, dtype=torch.int32)
        if column.pooling == "sum":
            self._sums[column.start] = lengths
        return self._gather.add(column.dim, rows, lengths)

    def _add_events(self, sequence: SequenceLayout) -> "_Events":
        """One bag an event and field; padded places ask for nothing."""
        fields = sequence.fields
        columns = [self._ids[:, f.start : f.start + f.width].reshape(-1) for f in fields]
        mask = columns[0] != 0
        places = mask.nonzero().squeeze(1)
        ones = torch.ones_like(places, dtype=torch.int32)
        tickets = [
            self._gather.add(field.dim, ids[places] + self._stack.starts[field.table], ones)
            for field, ids in zip(fields, columns, strict=True)
        ]
        return _Events(tickets, places, mask.view(-1, sequence.max_length))

    def assemble(self, floats: Tensor) -> SideInputs:
        """The side's model inputs, once the gather has run; ``floats`` is [B, num_floats]."""
        num_rows = len(self._ids)
        pooled = {start: self._gather.found(ticket) for start, ticket in self._wide.items()}
        for start, lengths in self._sums.items():
            pooled[start] = pooled[start] * lengths.unsqueeze(1)  # the look-up gave means
        for ticket, starts in self._singles.items():
            # unbind, not one slice a column: its backward is a single stack
            columns = self._gather.found(ticket).view(num_rows, len(starts), -1).unbind(1)
            pooled.update(zip(starts, columns, strict=True))
        flat = torch.cat([floats, *(pooled[start] for start in self._pooled_starts)], dim=1)
        return SideInputs(flat, {name: self._pad(events) for name, events in self._events.items()})

    def _pad(self, events: "_Events") -> tuple[Tensor, Tensor]:
        fields = torch.cat([self._gather.found(ticket) for ticket in events.tickets], dim=1)
        # in place: the zeros take no gradient, and a copy would cost as much as the look-up
        padded = fields.new_zeros(events.mask.numel(), fields.shape[1]).index_copy_(0, events.places, fields)
        return padded.view(*events.mask.shape, -1), events.mask


@dataclass(frozen=True)
class _Events:
    """The tickets of a sequence's fields, the flat places of its events, and their mask [B, L]."""

    tickets: list[tuple[int, int]]
    places: Tensor
    mask: Tensor
