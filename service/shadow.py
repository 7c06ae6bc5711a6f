"""Ranks answered requests once more by a second release, in a thread of its own, and tells how the answers differ."""

import logging
import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType

from msgspec import structs

from service.api import RankRequest
from service.deadline import Deadline
from service.experiment_counts import ExperimentCounts
from service.experiments import is_shadowed
from service.feedback import FeedbackLog
from service.ranker import Outcome, rank
from service.releases import LoadedRelease, Snapshot
from service.request_inputs import EPOCH, MICROSECOND
from service.settings import Settings
from service.workers import Workers

log = logging.getLogger(__name__)

MAX_WAITING = 64
"""Answered requests that wait to be ranked again; more are dropped and counted."""


@dataclass(frozen=True)
class _Answered:
    request: RankRequest
    outcome: Outcome
    second: LoadedRelease


class Shadows:
    """Takes up answered requests from any thread; never holds one up. Alive between start and stop.

    Args:
        settings: Which scenarios have a shadow, and of which share of their requests.
        counts: Of them, and of how much of an answer the second release would have given too.
        workers: Ask the heavy host, where another host runs the heavy stage; else it runs in the shadow's thread.
        feedback: Takes up what the second release ranked; None where nothing is logged.
    """

    def __init__(
        self,
        settings: Settings,
        counts: ExperimentCounts,
        *,
        workers: Workers,
        feedback: FeedbackLog | None = None,
    ) -> None:
        self._settings, self._counts, self._feedback = settings, counts, feedback
        self._workers = workers
        self._waiting: deque[_Answered] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Shadows":
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def offer(self, snapshot: Snapshot, request: RankRequest, outcome: Outcome) -> None:
        """Take up one answered request, if its scenario has a shadow and it is of the share."""
        shadow, second = self._settings.shadow.get(request.scenario), snapshot.shadows.get(request.scenario)
        if shadow is None or second is None or not is_shadowed(outcome.response.request_id, shadow):
            return
        with self._changed:
            has_room = len(self._waiting) < MAX_WAITING and not self._stopping
            if has_room:
                self._waiting.append(_Answered(request, outcome, second))
                self._changed.notify()
        if not has_room:
            self._counts.shadow("dropped")

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                answered = self._waiting.popleft()
            try:
                self._rank(answered)
            except Exception:
                log.exception("the shadow of request %s failed", answered.outcome.response.request_id)
                self._counts.shadow("failed")
            del answered  # while nothing waits, no release that was replaced is held

    def _rank(self, answered: _Answered) -> None:
        request, first = answered.request, answered.outcome.response
        snapshot = Snapshot({request.scenario: answered.second})
        event_time = EPOCH + answered.outcome.event_time_us * MICROSECOND
        with_id = structs.replace(request, request_id=first.request_id, event_time=event_time, timeout_ms=None)
        runner = self._workers.heavy if self._workers.is_remote else None
        second = rank(with_id, snapshot, self._settings, Deadline(), runner=runner)
        self._counts.shadow("ranked")
        shared = len(set(first.ads.ids) & set(second.response.ads.ids))
        if first.ads.ids:
            self._counts.overlap(request.scenario, shared / len(first.ads.ids))
        if self._feedback is not None:
            self._feedback.offer(with_id, second)
