"""Writes the feedback log in the writer's own thread: rows to pairs of files, which are ended by rows and by time."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from contracts.errors import RequestError
from service.feedback_columns import LogColumns
from service.feedback_counts import FeedbackCounts
from service.feedback_files import FilePair, remove_leftovers
from service.feedback_rows import LoggedRequest, RowReader, Served, tables
from service.releases import LoadedRelease

log = logging.getLogger(__name__)

OpenFiles = Callable[[Path, LogColumns], FilePair]

ROWS_OF_TABLE, REQUESTS_OF_TABLE = 16_384, 256
"""Candidates and requests that are put into Arrow tables at once."""

IDS_REMEMBERED = 100_000
"""A request that was sent again under its id is logged once if not so many others came between."""


@dataclass
class _Batch:
    """What is not in a table yet, and what is: of the requests that the file at hand will hold."""

    requests: list[LoggedRequest] = field(default_factory=list)
    num_rows_waiting: int = 0
    num_served: int = 0
    num_rows: int = 0
    began: float = 0.0


class FeedbackWriter:
    """Writes what was served to a directory; every fault costs at most the requests of one file, which are counted.

    Args:
        root: Directory of the log, created where it is absent.
        counts: Of what was written and what was dropped.
        releases: What serves now: a file has the columns of all of it, whatever is asked for first.
        rows: Candidates after which a file ends.
        seconds: Time after which a file ends.
        open_files: Begins a pair of files.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        root: Path,
        counts: FeedbackCounts,
        *,
        releases: Callable[[], Iterable[LoadedRelease]],
        rows: int,
        seconds: float,
        open_files: OpenFiles = FilePair,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._counts = root, counts
        self._releases, self._rows, self._seconds = releases, rows, seconds
        self._open_files, self._clock = open_files, clock
        self._reader = RowReader()
        self._columns = LogColumns()
        self._conflicts: set[str] = set()
        self._files: FilePair | None = None
        self._batch = _Batch()
        self._recent: dict[str, None] = {}
        self._fault = ""

    def prepare(self) -> None:
        """Create the directory and remove what killed processes left there. A failure is logged, and tried again."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if removed := remove_leftovers(self._root):
                log.info("feedback log: removed %d unfinished files of processes that were killed", removed)
        except OSError as error:
            self._tell(error)

    def add(self, served: Served) -> None:
        """Take up one request; ends the file when it has enough rows."""
        if self._is_repeated(served.request_id):
            self._counts.dropped("repeated")
            return
        requests = self._read(served)
        if not requests:
            return
        self._include([one.columns for one in requests])
        if not self._batch.num_served:
            self._include(self._reader.columns_of([*self._releases()]))
        batch = self._batch
        if not batch.num_served:
            batch.began = self._clock()
        num_rows = sum(len(one.stage) for one in requests)
        batch.requests += requests
        batch.num_served += 1
        batch.num_rows += num_rows
        batch.num_rows_waiting += num_rows
        if batch.num_rows >= self._rows:
            self.end_file()
        elif batch.num_rows_waiting >= ROWS_OF_TABLE or len(batch.requests) >= REQUESTS_OF_TABLE:
            self._attempt(self._write)

    def end_if_due(self) -> None:
        """End the file when its time is over."""
        if self._batch.num_served and self._clock() - self._batch.began >= self._seconds:
            self.end_file()

    def end_file(self) -> None:
        """Make everything that was added appear on disk."""
        if self._batch.num_served:
            self._attempt(self._finish)

    def _is_repeated(self, request_id: str) -> bool:
        if request_id in self._recent:
            return True
        self._recent[request_id] = None
        if len(self._recent) > IDS_REMEMBERED:
            del self._recent[next(iter(self._recent))]
        return False

    def _read(self, served: Served) -> list[LoggedRequest]:
        try:
            return self._reader.read(served)
        except RequestError:
            self._counts.dropped("invalid")
        except Exception:  # whatever one request holds, the others are logged
            log.exception("feedback log: request %s cannot be logged", served.request_id)
            self._counts.dropped("failed")
        finally:
            self._counts.left_out(self._reader.num_cold)
            self._reader.num_cold = 0
        return []

    def _include(self, found: Sequence[LogColumns]) -> None:
        """End the file where a release brings columns that it lacks; the next one has them."""
        columns = self._columns
        for one in found:
            for name in columns.conflicts(one):
                if name not in self._conflicts:
                    log.error("feedback log: column %s is null where a model reads it as another kind", name)
                    self._conflicts.add(name)
            columns = columns.including(one)
        if columns is not self._columns:
            self.end_file()
            self._columns = columns

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do something to the file at hand; where that fails, all that the file would have held is dropped."""
        try:
            work()
        except Exception as error:
            self._tell(error)
            if self._files is not None:
                self._files.discard()
            self._counts.dropped("failed", self._batch.num_served)
            self._files, self._batch = None, _Batch()
            with suppress(OSError):  # whoever removed the directory does not end the log
                self._root.mkdir(parents=True, exist_ok=True)

    def _tell(self, error: Exception) -> None:
        """Log a fault once, until files can be written again."""
        fault = f"{type(error).__name__}: {error}"
        if fault != self._fault:
            log.error("feedback log: %s cannot be written, requests are dropped: %s", self._root, fault)
        self._fault = fault

    def _write(self) -> None:
        """Put what waits into the file."""
        batch = self._batch
        if self._files is None:
            self._files = self._open_files(self._root, self._columns)
        self._files.write(*tables(batch.requests, self._columns))
        batch.requests, batch.num_rows_waiting = [], 0

    def _finish(self) -> None:
        self._write()
        if self._files is not None:
            self._files.finish()
        self._counts.written(self._batch.num_served, self._batch.num_rows)
        self._files, self._batch, self._fault = None, _Batch(), ""
