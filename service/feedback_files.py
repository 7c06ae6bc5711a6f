"""Files of the feedback log: pairs, of ``requests/`` and of ``candidates/``, that nobody sees before they are whole.

    DIR/requests/2026-03-01/120000123456-4711-9f86d081884c.parquet       of requests, and under the same name
    DIR/candidates/2026-03-01/120000123456-4711-9f86d081884c.parquet     of all their candidates

The day and the time are those at which the file was begun, UTC; the process and a random part keep the names of several
writers apart. A file is written under a hidden name, flushed to disk and renamed, requests first, so that no candidate
is without its request. What a killed process left is removed when the next one begins.
"""

import fcntl
import os
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.artifact import TEMPORARY_SUFFIX, file_lock, fsync
from service.feedback_columns import LogColumns

DATASETS = ("requests", "candidates")
ROWS_AT_ONCE = 65_536
"""Candidates that make a row group; fewer are kept in memory until the file ends."""


class FilePair:
    """Two files that are begun.

    Args:
        root: Directory of the log; it exists.
        columns: Of both files.

    Raises:
        OSError: As from the other methods; after one of those call :meth:`discard`.
    """

    def __init__(self, root: Path, columns: LogColumns) -> None:
        self.columns = columns
        self._waiting: list[tuple[pa.Table, pa.Table]] = []
        self._num_waiting = 0
        self._files: list[_HiddenFile] = []
        now = datetime.now(UTC)
        name = f"{now:%H%M%S%f}-{os.getpid()}-{uuid.uuid4().hex[:12]}.parquet"
        try:
            with file_lock(root):  # so that who removes what the dead have left sees no file before it is locked
                for dataset, schema in zip(DATASETS, (columns.requests, columns.candidates), strict=True):
                    self._files.append(_HiddenFile(root / dataset / f"{now:%Y-%m-%d}" / name, schema))
        except BaseException:
            self.discard()
            raise

    def write(self, requests: pa.Table, candidates: pa.Table) -> None:
        """Append rows, all those of a request at once."""
        self._waiting.append((requests, candidates))
        self._num_waiting += len(candidates)
        if self._num_waiting >= ROWS_AT_ONCE:
            self._flush()

    def finish(self) -> None:
        """Make both files appear, whole and on disk."""
        self._flush()
        for file in self._files:
            file.complete()
        for file in self._files:
            file.publish()

    def discard(self) -> None:
        """Remove what was written and not published; never fails."""
        self._waiting.clear()
        for file in self._files:
            file.discard()

    def _flush(self) -> None:
        if self._waiting:
            for file, parts in zip(self._files, zip(*self._waiting, strict=True), strict=True):
                file.write(pa.concat_tables(parts))
            self._waiting.clear()
            self._num_waiting = 0


class _HiddenFile:
    """One file under a hidden name, locked as long as its writer lives."""

    def __init__(self, target: Path, schema: pa.Schema) -> None:
        _make_directories(target.parent)
        self._target, self._aside = target, target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
        self._lock: int | None = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._sink = pa.OSFile(str(self._aside), "wb")
            # Numbers hardly repeat, and lists of texts compress as well without.
            texts = [field.name for field in schema if pa.types.is_string(field.type)]
            self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", use_dictionary=texts)
        except BaseException:
            self._aside.unlink(missing_ok=True)
            self._release()
            raise

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def complete(self) -> None:
        """Write the end of the file, and all of it to disk."""
        self._writer.close()
        self._sink.close()
        fsync(self._aside)

    def publish(self) -> None:
        """Make it appear under its name."""
        os.rename(self._aside, self._target)
        fsync(self._target.parent)
        self._release()

    def discard(self) -> None:
        for close in (self._writer.close, self._sink.close):
            with suppress(OSError, pa.ArrowException):
                close()
        with suppress(OSError):
            self._aside.unlink(missing_ok=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _make_directories(directory: Path) -> None:
    """Create a day's directory, and let its name and that of its dataset reach the disk."""
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        for parent in (directory.parent, directory.parent.parent):
            fsync(parent)


def remove_leftovers(root: Path) -> int:
    """Remove hidden files whose writer is dead, as nobody holds their lock; returns how many there were."""
    left = [file for dataset in DATASETS for file in (root / dataset).rglob(f".*{TEMPORARY_SUFFIX}")]
    return sum(_removed_if_abandoned(file, root) for file in left)


def _removed_if_abandoned(file: Path, root: Path) -> bool:
    with file_lock(root), suppress(FileNotFoundError, BlockingIOError):
        handle = os.open(file, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
            return True
        finally:
            os.close(handle)
    return False
