"""Which column of an encoded row holds what, and which slice of the dense model input it becomes.

Pure positions, shared by training, export and serving. An encoded row is ``num_ids`` int32 ids and, in another array,
``num_floats`` float32 values. Ids are bags sorted by name, then sequences sorted by name, their fields sorted by
name and field-major (all events of one field, then all of the next). Floats are sorted by name.
"""

from dataclasses import dataclass, replace

from contracts.schema import Feature, FeatureSchema, Pooling, Side


@dataclass(frozen=True, kw_only=True)
class IdColumn:
    """``width`` ids from ``start`` on, rows of one table.

    Args:
        name: Feature name, or field name inside a sequence.
        table: Table whose rows the ids are; features with the same table share its weights.
        start: First position in a row of ids.
        width: 1 for a categorical feature, else its ``max_length``.
        dim: Width of one embedding of the table, E.
        pooling: How the embeddings of several ids become one.
    """

    name: str
    table: str
    start: int
    width: int
    dim: int
    pooling: Pooling = "mean"


@dataclass(frozen=True, kw_only=True)
class FloatColumn:
    """``width`` floats from ``start`` on: 1 for a dense feature, ``length`` for an embedding feature."""

    name: str
    start: int
    width: int


@dataclass(frozen=True, kw_only=True)
class SequenceLayout:
    """A behaviour sequence: fields of ``max_length`` ids each, contiguous, most recent event first, padded with 0.

    An event is padding exactly where the id of the first field is 0; a missing value inside an event is id 1.
    """

    name: str
    max_length: int
    fields: tuple[IdColumn, ...]

    @property
    def dim(self) -> int:
        """Width of one event: the fields' embeddings side by side in this order."""
        return sum(field.dim for field in self.fields)


@dataclass(frozen=True)
class FlatSlice:
    """Where one feature, or one sequence field as ``<sequence>.<field>``, stands in the dense model input."""

    name: str
    start: int
    width: int


@dataclass(frozen=True, kw_only=True)
class SideLayout:
    """The positions of one side.

    Args:
        side: query, ad or pair.
        bags: Categorical (width 1) and multi_categorical features: one embedding each, pooled over ids other than 0.
        sequences: Behaviour sequences.
        dense: Dense and embedding features.
        num_ids: Ids a row.
        num_floats: Floats a row.
    """

    side: Side
    bags: tuple[IdColumn, ...]
    sequences: tuple[SequenceLayout, ...]
    dense: tuple[FloatColumn, ...]
    num_ids: int
    num_floats: int

    def flat(self, pool_sequences: bool) -> tuple[FlatSlice, ...]:
        """The dense model input: floats, one pooled embedding a bag and, where asked, one mean a sequence field.

        An empty bag or sequence is a slice of zeros.
        """
        parts = [(column.name, column.width) for column in self.dense]
        parts += [(bag.name, bag.dim) for bag in self.bags]
        if pool_sequences:
            parts += [(f"{seq.name}.{field.name}", field.dim) for seq in self.sequences for field in seq.fields]
        slices, start = [], 0
        for name, width in parts:
            slices.append(FlatSlice(name=name, start=start, width=width))
            start += width
        return tuple(slices)

    def flat_dim(self, pool_sequences: bool) -> int:
        """Width of the dense model input."""
        return sum(part.width for part in self.flat(pool_sequences))


def side_layout(schema: FeatureSchema, side: Side) -> SideLayout:
    """Lay out the features of one side; needs no fitted state."""
    features = schema.side_features(side)
    bags, num_ids = _bags(schema, features)
    sequences, num_ids = _sequences(schema, features, num_ids)
    dense, num_floats = _dense(features)
    return SideLayout(side=side, num_ids=num_ids, num_floats=num_floats, bags=bags, sequences=sequences, dense=dense)


def _bags(schema: FeatureSchema, features: dict[str, Feature]) -> tuple[tuple[IdColumn, ...], int]:
    bags, start = [], 0
    for name, feature in features.items():
        if feature.kind in ("categorical", "multi_categorical"):
            column = _id_column(schema, name, feature.table or "", start, feature.max_length or 1)
            bags.append(replace(column, pooling=feature.pooling))
            start += bags[-1].width
    return tuple(bags), start


def _sequences(
    schema: FeatureSchema, features: dict[str, Feature], start: int
) -> tuple[tuple[SequenceLayout, ...], int]:
    sequences = []
    for name, feature in features.items():
        if feature.kind != "sequence":
            continue
        length, fields = feature.max_length or 0, []
        for field_name, field in sorted((feature.fields or {}).items()):
            table = field.table or f"{name}.{field_name}"
            fields.append(_id_column(schema, field_name, table, start, length))
            start += length
        sequences.append(SequenceLayout(name=name, max_length=length, fields=tuple(fields)))
    return tuple(sequences), start


def _dense(features: dict[str, Feature]) -> tuple[tuple[FloatColumn, ...], int]:
    columns, start = [], 0
    for name, feature in features.items():
        if feature.kind in ("dense", "embedding"):
            columns.append(FloatColumn(name=name, start=start, width=feature.length or 1))
            start += columns[-1].width
    return tuple(columns), start


def _id_column(schema: FeatureSchema, name: str, table: str, start: int, width: int) -> IdColumn:
    return IdColumn(name=name, table=table, start=start, width=width, dim=schema.all_tables()[table].dim)
