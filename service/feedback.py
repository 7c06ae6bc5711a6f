"""The feedback log: which ads were ranked for which requests and how, for the next training run.

A request is handed over in constant time and never waits: a thread of its own turns what was served into rows
(feedback_rows.py) and writes them (feedback_writer.py, feedback_files.py). What does not fit into the queue is dropped
and counted.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType

import xxhash

from service.api import RankRequest
from service.feedback_counts import FeedbackCounts
from service.feedback_rows import Served
from service.feedback_writer import FeedbackWriter
from service.ranker import Outcome
from service.releases import LoadedRelease
from service.settings import Settings

log = logging.getLogger(__name__)

POLL_S = 0.05
"""How long the writer's thread sleeps when the queue is empty; nobody wakes it, as that costs the request that does."""

PAUSE_S = 50e-6
"""Between two requests the writer lets go of the interpreter, which others would else wait for."""

STOP_TIMEOUT_S = 10.0

ROWS_A_REQUEST = 1_000
"""Candidates that may wait for each request that may: what bounds the memory where requests are large."""

_SEED = 0x5EED
"""Of the hash that samples: not that of any other split of requests."""


class FeedbackLog:
    """Takes up what was served, from any thread, and writes it in a thread of its own between start and stop.

    Args:
        writer: Used by that thread alone.
        counts: Of what is dropped here.
        share: Of the requests that are logged, 0 to 1: by a hash of the request's id, alike in all processes.
        max_requests: Most requests that wait.
        max_rows: Most candidates that wait; one request may wait whatever its number.
    """

    def __init__(
        self, writer: FeedbackWriter, counts: FeedbackCounts, *, share: float, max_requests: int, max_rows: int
    ) -> None:
        self._writer, self._counts = writer, counts
        self._limit = round(share * 2**64)
        self._max_requests, self._max_rows = max_requests, max_rows
        self._queue: deque[Served] = deque()
        self._num_rows = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "FeedbackLog":
        self._stopping.clear()
        # Of a daemon: a disk that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            if self._thread.is_alive():
                log.error(
                    "feedback log: not written within %g s, %d requests are lost", STOP_TIMEOUT_S, len(self._queue)
                )
        self._thread = None

    def offer(self, request: RankRequest, outcome: Outcome) -> None:
        """Take up one answered request if it is in the sample. Never blocks, never fails."""
        request_id = outcome.response.request_id
        if not self.is_sampled(request_id):
            return
        served = Served(
            request_id=request_id, request=request, event_time_us=outcome.event_time_us, result=outcome.result
        )
        num_rows = served.num_rows
        with self._lock:  # held for a few instructions, never while anything is read or written
            has_room = not self._queue or (
                len(self._queue) < self._max_requests and self._num_rows + num_rows <= self._max_rows
            )
            if has_room:
                self._queue.append(served)
                self._num_rows += num_rows
        if not has_room:
            self._counts.dropped("queue_full")
            self._counts.waiting(len(self._queue))

    def is_sampled(self, request_id: str) -> bool:
        """Whether requests of this id are logged."""
        return xxhash.xxh64_intdigest(request_id.encode(), _SEED) < self._limit

    def _run(self) -> None:
        self._writer.prepare()
        while not self._stopping.wait(POLL_S):
            self._counts.waiting(len(self._queue))
            self._drain(lambda: time.sleep(PAUSE_S))
            self._writer.end_if_due()
        self._drain(lambda: None)
        self._writer.end_file()

    def _drain(self, pause: Callable[[], None]) -> None:
        """Write what waits; the file that is due is ended on the way."""
        while self._queue:
            served = self._queue.popleft()
            num_rows = served.num_rows
            with self._lock:
                self._num_rows -= num_rows
            self._writer.add(served)
            self._writer.end_if_due()
            del served  # while the queue is empty nothing holds a release that was replaced
            pause()


def feedback_log(
    settings: Settings,
    counts: FeedbackCounts,
    releases: Callable[[], Iterable[LoadedRelease]],
    *,
    folder: str = "",
) -> FeedbackLog | None:
    """The log that the settings ask for; None where they name no directory.

    Args:
        releases: What serves now and may be logged.
        folder: Inside the settings' directory, of a log apart.
    """
    if settings.feedback_dir is None:
        return None
    writer = FeedbackWriter(
        settings.feedback_dir / folder,
        counts,
        releases=releases,
        rows=settings.feedback_rows,
        seconds=settings.feedback_seconds,
    )
    return FeedbackLog(
        writer,
        counts,
        share=settings.feedback_share,
        max_requests=settings.feedback_queue,
        max_rows=ROWS_A_REQUEST * settings.feedback_queue,
    )
