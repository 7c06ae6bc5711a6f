"""What each row of a projection reads, so that the rows of an unchanged feature are found again in another model.

A projection of features has one row of weights for each column of its input. A row's key names the feature, what
decides the feature's columns, and the column: equal keys read the same thing.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor

from contracts.layout import FlatSlice
from contracts.schema import NUM_RESERVED, FeatureSchema, Table

REFITTED = ("fitted", "default", "label", "max_length")
"""Parts of a feature that shift its values a little and leave its columns as they are: its projection stays."""


@dataclass(frozen=True)
class KeyedRows:
    """The rows of one parameter.

    Args:
        view: A tensor of the parameter's shape as [rows, ...]; a view, so that writing to it changes the tensor.
        keys: What each row reads; None for padding.
    """

    view: Callable[[Tensor], Tensor]
    keys: tuple[Hashable, ...]

    def size(self, tensor: Tensor) -> int:
        """Scalars of one row."""
        return self.view(tensor)[0].numel()

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.view(tensor).shape[1:])


def flat_columns(schema: FeatureSchema, slices: Sequence[FlatSlice]) -> list[tuple[Hashable, ...]]:
    """Of each column of a side's flat input: the feature, its width, its content and the place in it."""
    found: list[tuple[Hashable, ...]] = []
    for piece in sorted(slices, key=lambda piece: piece.start):
        content = column_content(schema, piece.name)
        found += [(piece.name, piece.width, content, place) for place in range(piece.width)]
    return found


def column_content(schema: FeatureSchema, name: str) -> tuple[Any, ...]:
    """As :func:`feature_content`; for ``sequence.field``, a field that is pooled, what decides the field's columns."""
    if name in schema.features:
        return feature_content(schema, name)
    sequence, _, field = name.partition(".")
    found = (schema.features[sequence].fields or {})[field]
    table = found.table or name
    return found.kind, table, table_content(schema.all_tables()[table])


def feature_content(schema: FeatureSchema, name: str) -> tuple[Any, ...]:
    """What decides the columns of a feature, its statistics apart; two features with the same are interchangeable."""
    feature = schema.features[name]
    content = {key: value for key, value in msgspec.to_builtins(feature).items() if key not in (*REFITTED, "fields")}
    return tuple(sorted(content.items())), None if feature.table is None else table_content(
        schema.tables[feature.table]
    )


def table_content(table: Table) -> tuple[Any, ...]:
    """What decides which row an id is; a vocabulary's values do not, since its rows are found by them."""
    return table.dim, table.buckets, table.vocabulary is not None


def same_table_rows(old: Table | None, new: Table) -> tuple[list[int], list[int]]:
    """Rows of the new table, and those of the old one that stand for the same values; none where ids differ in kind.

    Example:
        >>> same_table_rows(Table(dim=4, vocabulary=("a", "b")), Table(dim=4, vocabulary=("b", "c")))
        ([0, 1, 2, 3], [0, 1, 2, 4])
    """
    if old is None or table_content(old) != table_content(new):
        return [], []
    if old.vocabulary is None or new.vocabulary is None:
        return list(range(new.num_rows)), list(range(new.num_rows))
    places = {value: NUM_RESERVED + at for at, value in enumerate(old.vocabulary)}
    pairs = [(NUM_RESERVED + at, places[value]) for at, value in enumerate(new.vocabulary) if value in places]
    reserved = list(range(NUM_RESERVED))
    return reserved + [into for into, _ in pairs], reserved + [out_of for _, out_of in pairs]
