"""Watches the host that runs the heavy stage for this one: waits for it, asks it again after a failure, tells of it."""

import logging
import threading
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from service.heavy_runner import HeavyRunner
from service.releases import LoadedRelease
from service.remote_heavy import HostFault
from service.settings import Settings
from service.stopping import StoppingError
from service.warmup import replayed
from service.workers import Workers

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How long new releases, all of one look at the store together, wait for the host to open their heavy rankers."""

CHECK_S = 1.0
"""How often it is noted whether the host is up."""

PAUSE_S = 0.2
"""Between two questions."""


class HeavyWatch:
    """Does nothing where this process runs the heavy stage itself.

    Args:
        settings: Under which saved requests are ranked.
        workers: Ask the host; None where nobody does.
        stopping: Ends every wait.
    """

    def __init__(self, settings: Settings, workers: Workers | None, stopping: threading.Event) -> None:
        self._settings, self._workers, self._stopping = settings, workers, stopping
        self._until: float | None = None
        self._waits: HostFault | None = None

    @property
    def runner(self) -> HeavyRunner | None:
        """Asks the host; None where there is none."""
        return self._workers.heavy if self._workers is not None and self._workers.is_remote else None

    def begin(self) -> None:
        """Be patient anew with whatever is loaded from now on."""
        self._until = None

    def wait_for(self, loaded: LoadedRelease) -> None:
        """Wait until the host runs the heavy ranker of a release, or patience is over: then it serves in light order.

        The host follows the same store and may be a little behind.

        Raises:
            StoppingError: The process ends meanwhile.
        """
        runner = self.runner
        if runner is None or loaded.heavy is None:
            return
        self._until = self._until or time.monotonic() + PATIENCE_S
        try:
            while degraded := replayed(loaded, loaded.warm_up_requests[0], self._settings, runner):
                what = f"release {loaded.release.release_id} waits for its heavy ranker {loaded.heavy.version}"
                self._waits = HostFault(f"{what}: {degraded.detail}", time.time())
                if time.monotonic() > self._until:
                    log.warning("%s no longer: %s", what, degraded.detail)
                    return
                if self._stopping.wait(PAUSE_S):
                    raise StoppingError(f"{what} no longer, since the process stops")
        finally:
            self._waits = None

    def fault(self, held: Iterable[LoadedRelease]) -> HostFault | None:
        """What is waited for, or what the host fails with for these releases; None where nothing is wrong."""
        remote = self._workers.remote if self._workers is not None else None
        return self._waits or (remote.fault(_by_version(held)) if remote is not None else None)

    def check(self, held: Iterable[LoadedRelease]) -> bool | None:
        """Whether the host runs what these releases need; asks it again where a call failed.

        None where it was not asked yet. What is waited for counts as not run.
        """
        runner, remote = self.runner, self._workers.remote if self._workers is not None else None
        releases = _by_version(held)
        if self._waits is not None:
            return False
        if runner is None or remote is None or not releases:
            return None
        for version, loaded in releases.items():
            if remote.fault([version]) is not None and not self._stopping.is_set():
                replayed(loaded, loaded.warm_up_requests[0], self._settings, runner)
        return remote.fault(releases) is None


def shown_host(url: str) -> str:
    """The host and port of an address, without a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _by_version(held: Iterable[LoadedRelease]) -> dict[str, LoadedRelease]:
    """One release of each heavy ranker."""
    return {loaded.heavy.version: loaded for loaded in held if loaded.heavy is not None}
