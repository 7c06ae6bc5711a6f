"""Requests and ads of a log, encoded once on disk, so that any number of processes can score its candidates.

Memory stays the same however many requests there are: what grows with them is written as it is read, and found again
by the digest of its id. The catalogue's ids are held in memory.

Shapes: R requests of the window, A rows of ``ads/``, B candidates of a slice.
"""

import hashlib
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from contracts.artifact import is_ready, publishing
from contracts.encoding import Encoded, Encoder
from contracts.errors import InputError, LogError
from contracts.records import REQUIRED_COLUMNS, LogPaths, dataset_files, plain_text, read_table, utc_micros
from contracts.timeline import AdsTimeline
from heavy_ranker.series import Teacher
from modeling.array_files import ArrayWriter, read_array
from modeling.log_ads import encode_ads
from modeling.log_requests import Window, join_time
from modeling.log_scan import scan

_BUCKET_BITS = 6
_JOIN_COLUMNS = {name: REQUIRED_COLUMNS["ads"][name] for name in ("ad_id", "valid_from")}


class ScoreStore:
    """What :func:`prepare` wrote, memory-mapped.

    Args:
        directory: Of one preparation.
        log: The log that was prepared; its ``ads/`` are read for their ids and times.
    """

    def __init__(self, directory: Path, log: LogPaths) -> None:
        self._directory = directory
        self._timeline = AdsTimeline(read_table(log.ads, [], required=_JOIN_COLUMNS), source=log.ads)
        self.reopen()

    def reopen(self) -> None:
        """Map the files anew, which gives back the memory of the rows read so far."""
        read = {path.stem: read_array(self._directory, path.stem) for path in self._directory.glob("*.npy")}
        self.query = Encoded(read["query.ids"], read["query.floats"])
        self.ad = Encoded(read["ad.ids"], read["ad.floats"])
        self.event_time, self.member = read["event_time"], read["member"]
        self._join_time = read["join_time"]
        self._high, self._low, self._row = read["high"], read["low"], read["row"]

    def requests(self, request_ids: pa.ChunkedArray | pa.Array) -> np.ndarray:
        """int64 [B], the row of each request; -1 where it was not read."""
        encoded = plain_text(request_ids).dictionary_encode()
        digests = digests_of(encoded.dictionary.to_pylist())
        at = np.searchsorted(self._high, digests[:, 0])
        same_high, same_low = self._same(at, digests)
        while (same_high & ~same_low).any():  # two ids may share the high half
            at = at + (same_high & ~same_low)
            same_high, same_low = self._same(at, digests)
        rows = np.where(same_high, self._row[np.minimum(at, len(self._row) - 1)], -1)
        return rows[np.asarray(encoded.indices)]

    def _same(self, at: np.ndarray, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether the entries at some places, which may be past the end, have the same high and the same low half."""
        inside = np.minimum(at, len(self._high) - 1)
        return (at < len(self._high)) & (self._high[inside] == digests[:, 0]), self._low[inside] == digests[:, 1]

    def ads(self, ad_ids: pa.ChunkedArray | pa.Array, requests: np.ndarray) -> np.ndarray:
        """int32 [B], each ad's row as of its request, -1 where it has none; ``requests`` are rows, none of them -1."""
        return self._timeline.rows_at(ad_ids, self._join_time[requests])


def prepare(teacher: Teacher, log: LogPaths, root: Path, *, start: datetime | None, end: datetime | None) -> Path:
    """Encode a log's requests and ads below ``root``; a second call with the same arguments finds what the first wrote.

    Raises:
        LogError: A dataset breaks its contract, or no request is in the window.
    """
    target = Path(root) / _key(teacher, log, start, end)
    if not is_ready(target):
        try:
            with publishing(target) as aside:
                _write_requests(teacher, log.requests, Window(start=start, end=end), aside)
                _write_ads(teacher, log.ads, aside)
        except InputError:
            if not is_ready(target):  # else another process was first
                raise
    return target


def digests_of(texts: list[str]) -> np.ndarray:
    """uint64 [n, 2], xxh3 of 128 bits: among 10 billion ids, two share one with a chance of about 1e-19."""
    joined = b"".join(xxhash.xxh3_128_digest(text.encode()) for text in texts)
    return np.frombuffer(joined, ">u8").reshape(-1, 2).astype(np.uint64)


def _write_requests(teacher: Teacher, path: str, window: Window, directory: Path) -> None:
    encoder, required = Encoder(teacher.schema, "query"), REQUIRED_COLUMNS["requests"]
    columns = {*encoder.columns, "ads_as_of", *filter(None, [teacher.fold_by])}
    written = 0
    with ArrayWriter(directory) as writer:
        for _, table in scan(path, columns, required=required, title="Encoding requests", filled=("request_id",)):
            event_time = utc_micros(table["event_time"], column="event_time", source=path)
            keep = window.mask(plain_text(table["scenario"]), event_time)
            table, event_time = table.filter(pa.array(keep)), event_time[keep]
            encoded = encoder.encode(table, num_rows=len(table), event_time=event_time, source=path).encoded
            writer.append("query.ids", encoded.ids)
            writer.append("query.floats", encoded.floats)
            writer.append("event_time", event_time)
            writer.append("join_time", join_time(table, event_time, path))
            writer.append("member", teacher.member_of(event_time, _fold_keys(teacher, table, path)))
            _append_digests(writer, digests_of(plain_text(table["request_id"]).to_pylist()), written)
            written += len(table)
    if not written:
        raise LogError(
            f"{path}: no request is in the window, so there is nothing to score",
            next_step="choose --from and --until so that requests of the log lie between them",
        )
    _sort_digests(directory, path)


def _fold_keys(teacher: Teacher, table: pa.Table, path: str) -> pa.ChunkedArray | None:
    if teacher.fold_by is None:
        return None
    if teacher.fold_by not in table.schema.names:
        raise LogError(f"{path}: column {teacher.fold_by} is missing, the folds of {teacher.version} are its hash")
    return table[teacher.fold_by]


def _append_digests(writer: ArrayWriter, digests: np.ndarray, first_row: int) -> None:
    """Add digests to the bucket of their first bits: sorted one by one, the buckets are sorted as a whole."""
    rows = np.arange(first_row, first_row + len(digests), dtype=np.uint64)
    entries, bucket = np.column_stack([digests, rows]), digests[:, 0] >> np.uint64(64 - _BUCKET_BITS)
    for number in range(1 << _BUCKET_BITS):
        writer.append(f"bucket{number}", entries[bucket == number])


def _sort_digests(directory: Path, path: str) -> None:
    with ArrayWriter(directory) as writer:
        for number in range(1 << _BUCKET_BITS):
            entries = np.array(read_array(directory, f"bucket{number}"))
            (directory / f"bucket{number}.npy").unlink()
            entries = entries[np.lexsort((entries[:, 1], entries[:, 0]))]
            repeated = (entries[1:, :2] == entries[:-1, :2]).all(axis=1)
            if repeated.any():
                rows = sorted(entries[int(repeated.argmax()) : int(repeated.argmax()) + 2, 2].tolist())
                raise LogError(f"{path}: rows {rows[0]} and {rows[1]} of the window have the same request_id")
            for column, name in enumerate(("high", "low")):
                writer.append(name, entries[:, column])
            writer.append("row", entries[:, 2].astype(np.int64))


def _write_ads(teacher: Teacher, path: str, directory: Path) -> None:
    num_rows = len(read_table(path, [], required=_JOIN_COLUMNS))
    encode_ads(teacher.schema, path, np.arange(num_rows), directory)


def _key(teacher: Teacher, log: LogPaths, start: datetime | None, end: datetime | None) -> str:
    """Changes with the teacher, any file of requests and ads (name, size, time of change) and the window."""
    files = [Path(file) for dataset in (log.requests, log.ads) for file in dataset_files(dataset)]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(msgspec.json.encode([teacher.version, stats, start, end])).hexdigest()[:16]
