"""One request's features to one encoded row, by look-ups that are prepared once: what a service does for every request.

``Encoder`` is made for columns of many rows; for a single one most of its time goes into Arrow arrays of one value.
Here every feature has a small writer that takes the raw value as it was decoded. Whatever is not plainly right (a
wrong type, NaN, an event later than the request) is left to ``contracts.rows``, so that rules and messages stand in one
place; on the rest both give the same bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from contracts import compiled
from contracts.dense import DenseRow
from contracts.encoding import Encoded, Encoder
from contracts.errors import RequestError
from contracts.feature_encoders import (
    CategoricalEncoder,
    DenseEncoder,
    EmbeddingEncoder,
    FeatureEncoder,
    MultiCategoricalEncoder,
)
from contracts.hashing import HashedIds, TextIds
from contracts.layout import SideLayout
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
from contracts.rows import encode_row
from contracts.schema import MISSING, OUT_OF_VOCABULARY
from contracts.sequence_encoder import FieldEncoder, SequenceEncoder


@dataclass(frozen=True)
class EncodedRow:
    """One row, and the columns that were missing or held a value outside their vocabulary, in the encoder's order."""

    encoded: Encoded
    missing: list[str]
    out_of_vocabulary: list[str]


@dataclass
class _Row:
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


class _Writer(Protocol):
    def __call__(self, row: _Row, value: Any) -> None: ...


class RowEncoder:
    """Encodes one row of the query side after another. Safe to use from several threads.

    Args:
        encoder: Whose rows these are.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        absent = encoder.encode({}, num_rows=1, event_time=np.zeros(1, np.int64), absent="missing").encoded
        self._ids, self._floats = absent.ids[0], absent.floats[0]
        dense = [part for part in encoder.encoders if isinstance(part, DenseEncoder)]
        self._dense = DenseRow([encoder.features[part.name] for part in dense])
        self._dense_places = np.array([part.position for part in dense], np.intp)
        self._no_dense = [math.nan] * len(dense)
        edges = _Edges()
        self._writers = {part.name: _writer(part, dense, edges) for part in encoder.encoders}
        self._edges_us = edges.joined()
        self._columns = tuple(encoder.columns)

    @property
    def layout(self) -> SideLayout:
        """Where each feature stands in a row."""
        return self._encoder.layout

    def encode(self, query: Mapping[str, Any], *, event_time_us: int, prefix: str = "query") -> EncodedRow:
        """Encode the features of one request; arguments and errors are those of ``contracts.rows.encode_request``."""
        try:
            row = self._written(query, event_time_us, compiled.kernels())
        except (IrregularError, RequestError, UnicodeEncodeError, OverflowError):
            return self._plain(query, event_time_us, prefix)
        given, outside = row.given, row.out_of_vocabulary
        return EncodedRow(
            Encoded(row.ids[None], row.floats[None]),
            [] if len(given) == len(self._columns) else [column for column in self._columns if column not in given],
            [column for column in self._columns if column in outside] if outside else [],
        )

    def _written(self, query: Mapping[str, Any], event_time_us: int, kernels: ModuleType | None) -> _Row:
        gathering = None if kernels is None else Gathering(kernels, self._edges_us)
        row = _Row(self._ids.copy(), self._floats.copy(), self._no_dense.copy(), event_time_us, gathering)
        for name, value in query.items():
            writer = self._writers.get(name)
            if writer is not None and value is not None:
                writer(row, value)
        if gathering is not None and not gathering.write(row.ids, event_time_us):
            return self._written(query, event_time_us, None)
        self._write_dense(row)
        return row

    def _write_dense(self, row: _Row) -> None:
        if not row.dense:
            return
        raw = np.array(row.dense, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            values = self._dense(raw).astype(np.float32)
        finite = np.isfinite(values)
        if finite.all():
            row.floats[self._dense_places] = values
            return
        given = ~np.isnan(raw)
        if not finite[given].all():
            raise IrregularError
        row.floats[self._dense_places[given]] = values[given]

    def _plain(self, query: Mapping[str, Any], event_time_us: int, prefix: str) -> EncodedRow:
        batch, _ = encode_row(self._encoder, query, event_time_us=event_time_us, prefix=prefix)
        return EncodedRow(
            batch.encoded,
            [name for name, count in batch.coverage.missing.items() if count],
            [name for name, count in batch.coverage.out_of_vocabulary.items() if count],
        )


class _Edges:
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


def _writer(part: FeatureEncoder, dense: Sequence[DenseEncoder], edges: _Edges) -> _Writer:
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


def _categorical(part: CategoricalEncoder) -> _Writer:
    name, position, id_of, buckets = part.name, part.position, id_function(part.ids_of), _buckets(part.ids_of)

    def write(row: _Row, value: Any) -> None:
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


def _multi_categorical(part: MultiCategoricalEncoder) -> _Writer:
    name, id_of, buckets = part.name, id_function(part.ids_of), _buckets(part.ids_of)
    start, width = part.positions.start, part.positions.stop - part.positions.start

    def write(row: _Row, value: Any) -> None:
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


def _dense(part: DenseEncoder, place: int) -> _Writer:
    name = part.name

    def write(row: _Row, value: Any) -> None:
        if type(value) not in NUMBER or not math.isfinite(value):
            raise IrregularError
        row.dense[place] = value
        row.given.add(name)

    return write


def _embedding(part: EmbeddingEncoder) -> _Writer:
    name, positions = part.name, part.positions
    width = positions.stop - positions.start

    def write(row: _Row, value: Any) -> None:
        if len(listed(value)) != width or not NUMBER.issuperset(map(type, value)):
            raise IrregularError
        with np.errstate(over="ignore"):
            values = np.array(value, np.float64).astype(np.float32)
        if not np.isfinite(values).all():
            raise IrregularError
        row.floats[positions] = values
        row.given.add(name)

    return write


def _sequence(part: SequenceEncoder, edges: _Edges) -> _Writer:
    fields = {own.column.removeprefix(f"{part.name}."): _field(own, edges) for own in part.fields}

    def write(row: _Row, value: Any) -> None:
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


_FieldWriter = Callable[[_Row, Sequence[Any] | None, int], None]
"""Takes all events of a field, oldest first, and how many are kept."""


def _field(part: FieldEncoder, edges: _Edges) -> _FieldWriter:
    start, column, buckets = part.positions.start, part.column, _buckets(part.ids_of)
    is_age = part.edges_us is not None
    first_edge, end_edge = (0, 0) if part.edges_us is None else edges.add(part.edges_us)
    ids_now = _ids_now(part)

    def write(row: _Row, values: Sequence[Any] | None, kept: int) -> None:
        if values is None:
            row.ids[start : start + kept] = MISSING
            return
        row.given.add(column)
        if not kept:
            return
        recent, gathering = values[: -kept - 1 : -1], row.gathering
        if gathering is not None and is_age:
            gathering.add_millis(recent, start, first_edge, end_edge)
        elif gathering is not None and buckets and begins_with_text(recent):
            gathering.add_texts(recent, start, buckets)
        else:
            row.ids[start : start + kept] = ids_now(row, recent)

    return write


def _ids_now(part: FieldEncoder) -> Callable[[_Row, Sequence[Any]], Any]:
    """Ids of one field's kept events, most recent first."""
    if part.edges_us is not None:
        edges_us = part.edges_us
        return lambda row, values: age_ids(values, edges_us, row.event_time_us)
    if part.ids_of is None:
        raise TypeError(f"{part.column} is neither a category nor an age")
    id_of, ids_of, column, is_vocabulary = id_function(part.ids_of), part.ids_of, part.column, part.is_vocabulary

    def vocabulary_ids(row: _Row, values: Sequence[Any]) -> list[int]:
        found = ids_of_values(values, id_of)
        if OUT_OF_VOCABULARY in found:
            row.out_of_vocabulary.add(column)
        return found

    def hashed_ids(row: _Row, values: Sequence[Any]) -> list[int] | np.ndarray:
        return (
            ids_of(values) if are_texts(values) else ids_of_values(values, id_of)
        )  # a hash costs less than a cold dictionary

    return vocabulary_ids if is_vocabulary else hashed_ids
