"""One request's features to one encoded row, by look-ups that are prepared once: what a service does for every request.

``Encoder`` is made for columns of many rows; for a single one most of its time goes into Arrow arrays of one value.
Here every feature has a small writer (``contracts.row_writers``). Whatever is not plainly right (a wrong type, NaN, an
event later than the request) is left to ``contracts.rows``, so that rules and messages stand in one place; on the rest
both give the same bits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from contracts import compiled
from contracts.dense import DenseRow
from contracts.encoding import Encoded, Encoder
from contracts.errors import RequestError
from contracts.feature_encoders import DenseEncoder
from contracts.layout import SideLayout
from contracts.moments import MAX_EPOCH_MS, MIN_EPOCH_MS
from contracts.query_in_body import QueryInBody
from contracts.row_gathering import Gathering
from contracts.row_plan import GIVEN, OUTSIDE, RowPlan
from contracts.row_values import IrregularError
from contracts.row_writers import Edges, RowInWork, writer_of
from contracts.rows import encode_row


@dataclass(frozen=True)
class EncodedRow:
    """One row, and the columns that were missing or held a value outside their vocabulary, in the encoder's order."""

    encoded: Encoded
    missing: list[str]
    out_of_vocabulary: list[str]


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
        places = np.array([part.position for part in dense], np.int64)
        self._dense = DenseRow([encoder.features[part.name] for part in dense], places)
        self._no_dense = [math.nan] * len(dense)
        edges = Edges()
        self._writers = {part.name: writer_of(part, dense, edges) for part in encoder.encoders}
        self._edges_us = edges.joined()
        self._columns = tuple(encoder.columns)
        self._plan = RowPlan(encoder.encoders, dense)
        self._raw = np.array(self._no_dense)
        self._no_states = np.zeros(len(self._plan.plan), np.uint8)
        self._all_given = bytes([GIVEN]) * len(self._columns)

    @property
    def layout(self) -> SideLayout:
        """Where each feature stands in a row."""
        return self._encoder.layout

    def encode(self, query: Mapping[str, Any], *, event_time_us: int, prefix: str = "query") -> EncodedRow:
        """Encode the features of one request; arguments and errors are those of ``contracts.rows.encode_request``."""
        kernels = compiled.kernels()
        if type(query) is QueryInBody:
            if kernels is not None and (found := self._in_body(query, event_time_us, kernels)) is not None:
                return found
            query = query.decoded
        try:
            row = self._written(query, event_time_us, kernels)
        except (IrregularError, RequestError, UnicodeEncodeError, OverflowError):
            return self._plain(query, event_time_us, prefix)
        given, outside = row.given, row.out_of_vocabulary
        return EncodedRow(
            Encoded(row.ids[None], row.floats[None]),
            [] if len(given) == len(self._columns) else [column for column in self._columns if column not in given],
            [column for column in self._columns if column in outside] if outside else [],
        )

    def _in_body(self, query: QueryInBody, event_time_us: int, kernels: ModuleType) -> EncodedRow | None:
        """The row of features in a body; None where something is not plainly right."""
        plan, lexicon = self._plan, self._plan.lexicon
        ids, floats, raw, states = self._ids.copy(), self._floats.copy(), self._raw.copy(), self._no_states.copy()
        unknown = kernels.write_row(
            *(query.data, query.values_at, query.items_at, query.numbers, plan.plan, lexicon.slots, lexicon.texts),
            *(plan.edges_us, event_time_us, MIN_EPOCH_MS, MAX_EPOCH_MS, ids, raw, floats, states),
        )
        if unknown < 0 or not (len(raw) == 0 or self._dense.write(raw, floats)):
            return None
        encoded, found = Encoded(ids[None], floats[None]), states.tobytes()
        if found.startswith(self._all_given):
            return EncodedRow(encoded, [], [])
        by_column = dict(zip(self._columns, found, strict=False))
        return EncodedRow(
            encoded,
            [column for column, state in by_column.items() if state not in (GIVEN, OUTSIDE)],
            [column for column, state in by_column.items() if state == OUTSIDE],
        )

    def _written(self, query: Mapping[str, Any], event_time_us: int, kernels: ModuleType | None) -> RowInWork:
        gathering = None if kernels is None else Gathering(kernels, self._edges_us)
        row = RowInWork(self._ids.copy(), self._floats.copy(), self._no_dense.copy(), event_time_us, gathering)
        for name, value in query.items():
            writer = self._writers.get(name)
            if writer is not None and value is not None:
                writer(row, value)
        if gathering is not None and not gathering.write(row.ids, event_time_us):
            return self._written(query, event_time_us, None)
        self._write_dense(row)
        return row

    def _write_dense(self, row: RowInWork) -> None:
        if not row.dense:
            return
        if not self._dense.write(np.array(row.dense, np.float64), row.floats):
            raise IrregularError

    def _plain(self, query: Mapping[str, Any], event_time_us: int, prefix: str) -> EncodedRow:
        batch, _ = encode_row(self._encoder, query, event_time_us=event_time_us, prefix=prefix)
        return EncodedRow(
            batch.encoded,
            [name for name, count in batch.coverage.missing.items() if count],
            [name for name, count in batch.coverage.out_of_vocabulary.items() if count],
        )
