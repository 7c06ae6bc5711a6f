"""Encodes the rows of one feature into its columns of ids or floats, one small class a kind of feature.

Letters: B rows, L ``max_length``, D ``length`` of an embedding feature.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from contracts import columns as raw
from contracts.dense import DenseTransform, dense_transform
from contracts.hashing import TextIds, text_ids
from contracts.layout import FloatColumn, IdColumn, SideLayout
from contracts.rows_in_work import RowsInWork, rows_with
from contracts.schema import MISSING, OUT_OF_VOCABULARY, FeatureSchema
from contracts.sequence_encoder import SequenceEncoder, sequence_encoder

NOT_FINITE = "holds NaN, an infinity or a number beyond float32, expected a finite number or null"


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
        lists.fill(out, self.ids_of)
        if lists.nulls is not None:
            out[lists.nulls, 0] = MISSING
        work.missing[self.name] = array.null_count
        if self.is_vocabulary:
            work.out_of_vocabulary[self.name] = rows_with(out, OUT_OF_VOCABULARY)


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
        values = raw.numbers(lists.values, pa.float32()).astype(np.float32, copy=False)
        if whole.all() and (np.diff(lists.starts) == length).all():
            out[:] = values[lists.starts[0] if len(out) else 0 :][: len(out) * length].reshape(out.shape)
        else:
            out[whole] = values[lists.starts[whole, None] + np.arange(length)]
        work.missing[self.name] = array.null_count
        work.fault(self.name, f"has a list of another length, expected {length} numbers or null", wrong_length)
        work.fault(self.name, NOT_FINITE, ~np.isfinite(out).all(axis=1))


FeatureEncoder = CategoricalEncoder | MultiCategoricalEncoder | DenseEncoder | EmbeddingEncoder | SequenceEncoder


def feature_encoders(schema: FeatureSchema, layout: SideLayout) -> tuple[FeatureEncoder, ...]:
    """One encoder a feature of the layout's side; the schema is fitted."""
    ids_of = {name: text_ids(table) for name, table in schema.all_tables().items()}
    bags = [_bag_encoder(schema, bag, ids_of) for bag in layout.bags]
    dense = [_float_encoder(schema, column) for column in layout.dense]
    sequences = [sequence_encoder(schema, sequence, ids_of) for sequence in layout.sequences]
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


def _slice(column: IdColumn | FloatColumn) -> slice:
    return slice(column.start, column.start + column.width)
