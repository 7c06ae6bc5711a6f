"""Rules of feature values: what the encoder refuses, and sequences that are unaligned, unsorted or see the future.

Letters: B rows of a slice, V events of all rows together.
"""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import pyarrow as pa

from adlogs.log_slices import Finding, LogSlice
from contracts import columns as raw
from contracts.columns import WrongTypeError
from contracts.feature_encoders import (
    CategoricalEncoder,
    DenseEncoder,
    EmbeddingEncoder,
    FeatureEncoder,
    feature_encoders,
)
from contracts.layout import side_layout
from contracts.rows_in_work import RowsInWork
from contracts.schema import Feature, FeatureSchema, Side, Table
from contracts.sequence_encoder import FUTURE, UNALIGNED, UNSORTED


class FeatureRules:
    """Checks the features of one side as the encoder reads them; the schema need not be fitted.

    Numbers are checked by the encoder's own code. Sequences are checked whole, also the events beyond
    ``max_length``.
    """

    def __init__(self, schema: FeatureSchema, side: Side) -> None:
        stand_in = _encodable(schema)
        self._layout = side_layout(stand_in, side)
        self._encoders = feature_encoders(stand_in, self._layout)
        self._sequences = {
            name: feature for name, feature in schema.side_features(side).items() if feature.kind == "sequence"
        }
        self.columns: tuple[str, ...] = tuple(column for encoder in self._encoders for column in encoder.columns)

    def refusal(self, column: str, type_: pa.DataType) -> str | None:
        """What the encoder expects of a column that it cannot read as it is; None where it can."""
        encoder = next(encoder for encoder in self._encoders if column in encoder.columns)
        try:
            self._encode(encoder, {column: pa.nulls(0, type_)}, 0)
        except WrongTypeError as error:
            expected = str(error).partition(", expected ")[2]
            is_list = not isinstance(encoder, CategoricalEncoder | DenseEncoder)
            return f"a list of {expected.removeprefix('a list of ')}" if is_list else expected
        return None

    def check(self, rows: LogSlice, request_time: np.ndarray | None = None) -> Iterator[Finding]:
        """Yield what is wrong with a slice; ``request_time`` is int64 [B] microseconds UTC, for the events' times."""
        for encoder in self._encoders:
            if isinstance(encoder, DenseEncoder | EmbeddingEncoder) and encoder.name in rows.columns:
                yield from self._encode(encoder, rows.columns, rows.num_rows)
        for name, feature in self._sequences.items():
            yield from _sequence_findings(name, feature, rows, request_time)

    def _encode(self, encoder: FeatureEncoder, columns: Mapping[str, pa.Array], num_rows: int) -> list[Finding]:
        work = RowsInWork(
            columns,
            ids=np.zeros((num_rows, self._layout.num_ids), np.int32),
            floats=np.zeros((num_rows, self._layout.num_floats), np.float32),
            event_time=np.zeros(num_rows, np.int64),
        )
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is what is looked for
            encoder.encode(work)
        return [Finding(column, rule, found) for column, rule, found in work.faults]


def _encodable(schema: FeatureSchema) -> FeatureSchema:
    """The schema with something in the place of what is still to be fitted; its ids and floats mean nothing."""
    tables = {
        name: Table(dim=table.dim, vocabulary=("any",)) if table.max_values is not None else table
        for name, table in schema.tables.items()
    }
    features = {
        name: feature
        if feature.is_fitted
        else msgspec.structs.replace(feature, transform="none", default=0.0, buckets=None, fitted=None)
        for name, feature in schema.features.items()
    }
    return msgspec.structs.replace(schema, tables=tables, features=features)


def _sequence_findings(
    name: str, feature: Feature, rows: LogSlice, request_time: np.ndarray | None
) -> Iterator[Finding]:
    fields = {f"{name}.{field_name}": field for field_name, field in (feature.fields or {}).items()}
    found = {column: raw.lists(rows.columns[column], "lists") for column in fields if column in rows.columns}
    if not found:
        return
    longest = np.max([lists.lengths for lists in found.values()], axis=0)
    for column, lists in found.items():
        differs = lists.lengths != longest
        yield Finding(column, UNALIGNED, differs if lists.nulls is None else differs & ~lists.nulls)
        if fields[column].kind == "age":
            yield from _time_findings(column, lists, request_time)


def _time_findings(column: str, lists: raw.Lists, request_time: np.ndarray | None) -> Iterator[Finding]:
    """The events of a row come oldest first, and none after the request."""
    row, position = _events(lists)
    times, nulls = raw.instants(lists.values)[position], raw.null_mask(lists.values)
    if nulls is not None:
        row, times = row[~nulls[position]], times[~nulls[position]]
    future, unsorted = np.zeros(len(lists.lengths), bool), np.zeros(len(lists.lengths), bool)
    unsorted[row[1:][(np.diff(times) < 0) & (np.diff(row) == 0)]] = True
    yield Finding(column, UNSORTED, unsorted)
    if request_time is not None:
        future[row[times > request_time[row]]] = True
        yield Finding(column, FUTURE, future, ("request_id", "event_time"))


def _events(lists: raw.Lists) -> tuple[np.ndarray, np.ndarray]:
    """The row of each event, and where its value stands; both int64 [V]."""
    before = np.cumsum(lists.lengths) - lists.lengths
    row = np.repeat(np.arange(len(lists.lengths)), lists.lengths)
    return row, (lists.starts - before)[row] + np.arange(len(row))
