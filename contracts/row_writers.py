"""What writes one feature of a request into its row: each takes the raw value as it was decoded.

Whatever is not plainly right raises :class:`~contracts.row_values.IrregularError`, and is left to ``contracts.rows``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from contracts.feature_encoders import (
    CategoricalEncoder,
    DenseEncoder,
    EmbeddingEncoder,
    FeatureEncoder,
    MultiCategoricalEncoder,
)
from contracts.hashing import HashedIds, TextIds
from contracts.row_gathering import Gathering
from contracts.row_values import (
    CATEGORY,
    NUMBER,
    IrregularError,
    age_ids,
    are_texts,
    begins_with_text,
    id_function,
    ids_of_values,
    listed,
)
from contracts.schema import MISSING, OUT_OF_VOCABULARY
from contracts.sequence_encoder import FieldEncoder, SequenceEncoder


@dataclass
class RowInWork:
    """A row in work; ``dense`` holds raw numbers by their place among the dense features, NaN where missing.

    What is to be encoded with that of other features goes to ``gathering``, where there is one.
    """

    ids: np.ndarray
    floats: np.ndarray
    dense: list[float]
    event_time_us: int
    gathering: Gathering | None = None
    given: set[str] = field(default_factory=set)
    out_of_vocabulary: set[str] = field(default_factory=set)


class Writer(Protocol):
    """Writes the value of one feature, which is not None."""

    def __call__(self, row: RowInWork, value: Any) -> None: ...


class Edges:
    """Edges of the ages of all fields, one after another."""

    def __init__(self) -> None:
        self._parts, self._end = [np.zeros(0, np.int64)], 0

    def add(self, edges_us: np.ndarray) -> tuple[int, int]:
        """Where the edges of a field begin and end."""
        self._parts.append(edges_us)
        start, self._end = self._end, self._end + len(edges_us)
        return start, self._end

    def joined(self) -> np.ndarray:
        return np.concatenate(self._parts)


def writer_of(part: FeatureEncoder, dense: Sequence[DenseEncoder], edges: Edges) -> Writer:
    """The writer of a feature, one of the ``dense`` ones if it is such; what ages it has joins the ``edges``."""
    match part:
        case CategoricalEncoder():
            return _categorical(part)
        case MultiCategoricalEncoder():
            return _multi_categorical(part)
        case DenseEncoder():
            return _dense(part, dense.index(part))
        case EmbeddingEncoder():
            return _embedding(part)
        case SequenceEncoder():
            return _sequence(part, edges)


def _buckets(ids_of: TextIds | None) -> int:
    """Rows of a hashed table; 0 for another."""
    return ids_of.buckets if isinstance(ids_of, HashedIds) else 0


def _categorical(part: CategoricalEncoder) -> Writer:
    name, position, id_of, buckets = part.name, part.position, id_function(part.ids_of), _buckets(part.ids_of)

    def write(row: RowInWork, value: Any) -> None:
        if buckets and row.gathering is not None and type(value) is str:
            row.gathering.add_text(value, position, buckets)
            row.given.add(name)
            return
        if type(value) not in CATEGORY:
            raise IrregularError
        found = id_of(value)
        row.ids[position] = found
        row.given.add(name)
        if found == OUT_OF_VOCABULARY:
            row.out_of_vocabulary.add(name)

    return write


def _multi_categorical(part: MultiCategoricalEncoder) -> Writer:
    name, id_of, buckets = part.name, id_function(part.ids_of), _buckets(part.ids_of)
    start, width = part.positions.start, part.positions.stop - part.positions.start

    def write(row: RowInWork, value: Any) -> None:
        if buckets and row.gathering is not None and begins_with_text(value) and are_texts(value[width:]):
            row.ids[start] = 0
            row.gathering.add_texts(value[:width], start, buckets)
            row.given.add(name)
            return
        ids = ids_of_values(listed(value), id_of)[:width]
        row.ids[start] = 0
        row.ids[start : start + len(ids)] = ids
        row.given.add(name)
        if OUT_OF_VOCABULARY in ids:
            row.out_of_vocabulary.add(name)

    return write


def _dense(part: DenseEncoder, place: int) -> Writer:
    name = part.name

    def write(row: RowInWork, value: Any) -> None:
        if type(value) not in NUMBER or not math.isfinite(value):
            raise IrregularError
        row.dense[place] = value
        row.given.add(name)

    return write


def _embedding(part: EmbeddingEncoder) -> Writer:
    name, positions = part.name, part.positions
    width = positions.stop - positions.start

    def write(row: RowInWork, value: Any) -> None:
        if len(listed(value)) != width or not NUMBER.issuperset(map(type, value)):
            raise IrregularError
        with np.errstate(over="ignore"):
            values = np.array(value, np.float64).astype(np.float32)
        if not np.isfinite(values).all():
            raise IrregularError
        row.floats[positions] = values
        row.given.add(name)

    return write


def _sequence(part: SequenceEncoder, edges: Edges) -> Writer:
    fields = {own.column.removeprefix(f"{part.name}."): _field(own, edges) for own in part.fields}

    def write(row: RowInWork, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise IrregularError
        length: int | None = None
        for name, values in value.items():
            if values is None or name not in fields:
                continue
            if length is None:
                length = len(listed(values))
            elif len(listed(values)) != length:
                raise IrregularError
        kept = min(length or 0, part.max_length)
        for name, write_field in fields.items():
            write_field(row, value.get(name), kept)

    return write


_FieldWriter = Callable[[RowInWork, Sequence[Any] | None, int], None]
"""Takes all events of a field, oldest first, and how many are kept."""


def _field(part: FieldEncoder, edges: Edges) -> _FieldWriter:
    start, column, buckets = part.positions.start, part.column, _buckets(part.ids_of)
    is_age = part.edges_us is not None
    first_edge, end_edge = (0, 0) if part.edges_us is None else edges.add(part.edges_us)
    ids_now = _ids_now(part)

    def write(row: RowInWork, values: Sequence[Any] | None, kept: int) -> None:
        if values is None:
            row.ids[start : start + kept] = MISSING
            return
        row.given.add(column)
        if not kept:
            return
        recent, gathering = values[: -kept - 1 : -1], row.gathering
        if gathering is not None and is_age and type(recent[0]) is int:  # times as text are read one by one
            gathering.add_millis(recent, start, first_edge, end_edge)
        elif gathering is not None and buckets and begins_with_text(recent):
            gathering.add_texts(recent, start, buckets)
        else:
            row.ids[start : start + kept] = ids_now(row, recent)

    return write


def _ids_now(part: FieldEncoder) -> Callable[[RowInWork, Sequence[Any]], Any]:
    """Ids of one field's kept events, most recent first."""
    if part.edges_us is not None:
        edges_us = part.edges_us
        return lambda row, values: age_ids(values, edges_us, row.event_time_us)
    if part.ids_of is None:
        raise TypeError(f"{part.column} is neither a category nor an age")
    id_of, ids_of, column, is_vocabulary = id_function(part.ids_of), part.ids_of, part.column, part.is_vocabulary

    def vocabulary_ids(row: RowInWork, values: Sequence[Any]) -> list[int]:
        found = ids_of_values(values, id_of)
        if OUT_OF_VOCABULARY in found:
            row.out_of_vocabulary.add(column)
        return found

    def hashed_ids(row: RowInWork, values: Sequence[Any]) -> list[int] | np.ndarray:
        # a hash costs less than a cold dictionary
        return ids_of(values) if are_texts(values) else ids_of_values(values, id_of)

    return vocabulary_ids if is_vocabulary else hashed_ids
