"""Requests that run in threads of their own, on models that wait: whatever is to happen in mid-request can happen."""

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from service.deadline import Deadline
from service.ranker import rank
from service.releases import Snapshot
from service.settings import Settings
from service.wire import decode_request

PATIENCE_S = 60.0
STAGES = {
    "tower": ("embed_query",),
    "live": ("lookup", "bids", "pins", "heavy"),
    "serving": ("encode_request", "score"),
}
"""Before which methods a request waits, by what has them: the query tower, the index, the heavy ranker."""


class Waiting:
    """An object of the service, some of whose methods call ``stop`` before they run."""

    def __init__(self, real: Any, methods: Collection[str], stop: Callable[[], None]) -> None:
        self._real, self._methods, self._stop = real, methods, stop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in self._methods:
            return found

        def call(*args: Any, **named: Any) -> Any:
            self._stop()
            return found(*args, **named)

        return call


def waiting_snapshot(snapshot: Snapshot, stop: Callable[[], None]) -> Snapshot:
    """The same releases, whose models and indexes wait."""
    releases = {}
    for scenario, loaded in snapshot.releases.items():
        parts = {"tower": loaded.tower, "live": loaded.live, "serving": loaded.heavy.serving}
        slow = {name: Waiting(parts[name], methods, stop) for name, methods in STAGES.items()}
        heavy = replace(loaded.heavy, serving=slow["serving"])
        releases[scenario] = replace(loaded, tower=slow["tower"], live=slow["live"], heavy=heavy)
    return Snapshot(releases)


class Flight:
    """One request, which goes on when it is told to.

    Args:
        body: JSON.
        snapshot: What serves when it begins.
        settings: Of the service.
        pause: Called where it would wait, if it shall run on by itself.
    """

    def __init__(
        self, body: bytes, snapshot: Snapshot, settings: Settings, pause: Callable[[], None] | None = None
    ) -> None:
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._body, self._settings = body, settings
        self._snapshot = waiting_snapshot(snapshot, pause or self._stop)
        self._outcome: Any = None
        self.is_landed = False
        threading.Thread(target=self._run, daemon=True).start()

    def go_on(self) -> None:
        """Let it run until it waits again, or is answered."""
        self._go.release()
        if not self._waits.acquire(timeout=PATIENCE_S):
            raise TimeoutError("a request neither waits nor is answered")

    def finish(self) -> None:
        """Let it run to its end."""
        while not self.is_landed:
            self.go_on()

    def land(self) -> Any:
        """Let it run to its end; the response."""
        self.finish()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def _stop(self) -> None:
        self._waits.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._outcome = rank(decode_request(self._body), self._snapshot, self._settings, Deadline()).response
        except BaseException as error:
            self._outcome = error
        self.is_landed = True
        self._waits.release()
