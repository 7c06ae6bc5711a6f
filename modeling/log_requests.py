"""The requests of a log, encoded in reading order.

Shapes: B rows of a slice, R requests.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.encoding import Coverage, Encoder
from contracts.errors import InputError, LogError
from contracts.records import REQUIRED_COLUMNS, plain_text, utc_micros
from contracts.schema import FeatureSchema
from modeling.array_files import ArrayWriter, write_texts
from modeling.log_scan import scan


@dataclass(frozen=True, kw_only=True)
class Window:
    """Which requests are read: of one or several scenarios, and with ``start <= event_time < end``, where given.

    Raises:
        InputError: ``start`` or ``end`` has no time zone.
    """

    scenario: str | tuple[str, ...] | None = None
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for name, moment in (("start", self.start), ("end", self.end)):
            if moment is not None and moment.tzinfo is None:
                raise InputError(f"{name}: expected a time with a zone, got {moment.isoformat()}")

    def mask(self, scenarios: pa.ChunkedArray, event_time: np.ndarray) -> np.ndarray:
        """bool [B], the rows that are read."""
        keep = np.ones(len(event_time), bool)
        if self.scenario is not None:
            wanted = (self.scenario,) if isinstance(self.scenario, str) else self.scenario
            keep &= np.asarray(pc.is_in(scenarios, value_set=pa.array(wanted, pa.string())))
        if self.start is not None:
            keep &= event_time >= utc_microseconds(self.start)
        if self.end is not None:
            keep &= event_time < utc_microseconds(self.end)
        return keep

    def words(self) -> str:
        """What is read, to follow a noun; empty for everything.

        Example:
            >>> Window(scenario="shopping", end=datetime.fromisoformat("2026-03-02T00:00:00Z")).words()
            ' of scenario shopping before 2026-03-02T00:00:00+00:00'
        """
        parts = []
        if self.scenario is not None:
            several = (self.scenario,) if isinstance(self.scenario, str) else self.scenario
            parts.append(f"of scenario {' or '.join(several)}")
        if self.start is not None and self.end is not None:
            parts.append(f"between {self.start.isoformat()} and {self.end.isoformat()}")
        elif self.start is not None:
            parts.append(f"from {self.start.isoformat()} on")
        elif self.end is not None:
            parts.append(f"before {self.end.isoformat()}")
        return "".join(f" {part}" for part in parts)


def utc_microseconds(moment: datetime) -> int:
    """Microseconds since 1970, UTC.

    Example:
        >>> from datetime import UTC
        >>> utc_microseconds(datetime(1970, 1, 2, tzinfo=UTC))
        86400000000
    """
    return pa.scalar(moment, pa.timestamp("us", "UTC")).value


@dataclass(frozen=True)
class Requests:
    """What later stages need of the requests; the rest is on disk.

    Args:
        rows: Row of each request id.
        join_time: int64 [R], the moment whose ad rows a request saw: ``ads_as_of``, else ``event_time``.
        scenario_names: In the order of the codes on disk.
        coverage: Of the query side.
        num_read: Requests in the log, those outside the window included.
    """

    rows: dict[str, int]
    join_time: np.ndarray
    scenario_names: tuple[str, ...]
    coverage: Coverage
    num_read: int

    def join_time_of(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B]; 0 where the row is -1, a moment before any ad."""
        return np.append(self.join_time, 0)[rows]

    def rows_of(self, request_ids: pa.ChunkedArray) -> np.ndarray:
        """int32 [B], -1 where a request was not read. Each distinct id is looked up once."""
        encoded = plain_text(request_ids).combine_chunks().dictionary_encode()
        rows = np.fromiter((self.rows.get(text, -1) for text in encoded.dictionary.to_pylist()), np.int32)
        return rows[np.asarray(encoded.indices)]


def encode_requests(schema: FeatureSchema, path: str, window: Window, directory: Path) -> Requests:
    """Encode the requests of a window to files of ``directory``: ids, floats, times, scenarios, positions.

    Raises:
        LogError: A column is absent or of the wrong type, a value breaks a rule, or a request id comes twice.
    """
    encoder, required = Encoder(schema, "query"), REQUIRED_COLUMNS["requests"]
    rows: dict[str, int] = {}
    codes: dict[str, int] = {}
    coverage, join_times, num_read = Coverage(), [np.zeros(0, np.int64)], 0
    with ArrayWriter(directory) as writer:
        for start, table in scan(path, {*encoder.columns, "ads_as_of"}, required=required, title="Encoding requests"):
            num_read = start + len(table)
            event_time = utc_micros(table["event_time"], column="event_time", source=path)
            keep = window.mask(plain_text(table["scenario"]), event_time)
            table, event_time = table.filter(pa.array(keep)), event_time[keep]
            encoded = encoder.encode(table, num_rows=len(table), event_time=event_time, source=path)
            writer.append("query.ids", encoded.encoded.ids)
            writer.append("query.floats", encoded.encoded.floats)
            writer.append("event_time", event_time)
            writer.append("scenario", _codes(table["scenario"], codes))
            writer.append("request_position", start + np.flatnonzero(keep))
            coverage = coverage.merge(encoded.coverage)
            join_times.append(join_time(table, event_time, path))
            _add_rows(rows, table["request_id"], path)
    write_texts(directory, "request_id", pa.array(list(rows), pa.string()))
    return Requests(rows, np.concatenate(join_times), tuple(codes), coverage, num_read)


def _add_rows(rows: dict[str, int], request_ids: pa.ChunkedArray, path: str) -> None:
    for request_id in plain_text(request_ids).to_pylist():
        if request_id is None:
            raise LogError(f"{path}: column request_id is missing in a row, expected text")
        if request_id in rows:
            raise LogError(f"{path}: request_id {request_id!r} comes twice, expected one row a request")
        rows[request_id] = len(rows)


def _codes(scenarios: pa.ChunkedArray, codes: dict[str, int]) -> np.ndarray:
    """int16 [B]; new scenarios get the next code, a missing one is the empty text."""
    encoded = plain_text(scenarios).combine_chunks().fill_null("").dictionary_encode()
    own = [codes.setdefault(text, len(codes)) for text in encoded.dictionary.to_pylist()]
    return np.array(own, np.int16)[np.asarray(encoded.indices)]


def join_time(table: pa.Table, event_time: np.ndarray, path: str) -> np.ndarray:
    """int64 [R], the moment whose ad rows each request saw: ``ads_as_of``, else its own time."""
    if "ads_as_of" not in table.schema.names:
        return event_time
    given = np.asarray(table["ads_as_of"].is_valid())
    seen = event_time.copy()
    known = table["ads_as_of"].filter(pa.array(given))
    if len(known):
        seen[given] = utc_micros(known, column="ads_as_of", source=path)
    return seen
