"""The heavy rankers that a host of the heavy stage runs: those of the newest releases of a store.

It follows the same store as the hosts that rank, and holds the heavy rankers of each scenario's current release and of
the one before, so that hosts which roll to a release, or back, find it here.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from contracts.bundle import open_bundle
from contracts.errors import AdsieveError
from indexing.store import DirectoryStore
from indexing.stores import shown_store
from service.batch_trials import with_trial
from service.device_engines import DeviceEngines
from service.heavies import LoadedHeavy, load_heavy, usual_survivors
from service.memory import give_back
from service.retired import Retired
from service.settings import Settings

log = logging.getLogger(__name__)

KEPT_RELEASES = 2
"""Of a scenario: the current one and what a rollback leads to."""


class HeavyHost:
    """The heavy rankers of a store's newest releases. ``poll`` blocks; the rest may be read from any thread.

    Args:
        store: Followed.
        settings: Threads and engine.
        settle: Called once, when it first has a heavy ranker.
    """

    def __init__(self, store: DirectoryStore, settings: Settings, settle: Callable[[], None] = lambda: None) -> None:
        self._store, self._settings = store, settings
        self._lock, self.devices = threading.Lock(), DeviceEngines(settings)
        self.heavies: dict[str, LoadedHeavy] = {}
        self.failures: dict[str, str] = {}
        self._tried: dict[str, float] = {}
        self._retired, self._settle = Retired(), settle
        self._is_stopping, self._is_settled = False, False

    @property
    def is_ready(self) -> bool:
        """Whether there is anything to run and nothing of what is named is missing."""
        return bool(self.heavies) and not self.failures and not self._is_stopping

    def stop(self) -> None:
        """Be ready no more: the process is about to end, what it was asked is still answered."""
        self._is_stopping = True

    def poll(self) -> None:
        """Open what the store names and is not open; let go what it names no more."""
        with self._lock:
            try:
                wanted = self._wanted()
            except Exception as error:
                self._fail("", error)
                return
            self._note_empty(is_empty=not wanted)
            has_news = self.devices.has_news()  # a plan was built: another engine may take over
            for version, path in wanted.items():
                if (version not in self.heavies or has_news) and not self._is_paused(version):
                    self._open(version, path)
            self._retired.retire_heavies(heavy for version, heavy in self.heavies.items() if version not in wanted)
            self.heavies = {version: heavy for version, heavy in self.heavies.items() if version in wanted}
            if self._retired.let_go():
                give_back()
            if self.heavies and not self._is_settled:
                self._settle()
                self._is_settled = True
            named = {*wanted, ""}
            self.failures = {version: text for version, text in self.failures.items() if version in named}

    def _note_empty(self, *, is_empty: bool) -> None:
        """Tell that there is nothing to run; and forget that the store could not be read."""
        what = f"{shown_store(self._settings.store)}: no release names a heavy ranker yet, waiting for one"
        if not is_empty:
            self.failures = {version: text for version, text in self.failures.items() if version}
        elif self.failures.get("") != what:
            log.info("%s", what)
            self.failures = self.failures | {"": what}

    def _wanted(self) -> dict[str, Path]:
        wanted = {}
        for scenario in self._store.scenarios():
            for release in (self._store.current(scenario), *self._store.list(scenario)[:KEPT_RELEASES]):
                path = None if release is None else self._store.paths(release).heavy
                if release is not None and release.heavy is not None and path is not None:
                    wanted[release.heavy] = path
        return wanted

    def _open(self, version: str, path: Path) -> None:
        settings = self._settings
        try:
            bundle = open_bundle(path, kind="heavy")
            heavy = load_heavy(
                bundle,
                threads=settings.engine_threads,
                engine=settings.heavy_engine,
                survivors=usual_survivors(settings.survivors),
                gpu=self.devices.gpu,
            )
            if heavy.version != version:
                raise AdsieveError(f"{bundle.path}: is {heavy.version}, the release names {version}")
        except Exception as error:
            self._fail(version, error)
            return
        self._retired.retire_heavies(one for one in (self.heavies.get(version),) if one is not None)
        self.heavies = self.heavies | {version: with_trial(heavy, settings)}
        self.failures.pop(version, None)
        log.info("heavy ranker %s is run here", version)

    def _is_paused(self, version: str) -> bool:
        tried = self._tried.get(version)
        return tried is not None and time.monotonic() - tried < self._settings.failed_retry_s

    def _fail(self, version: str, error: Exception) -> None:
        log.error("heavy ranker %s is refused: %s", version or "of the store", error)
        self._tried[version] = time.monotonic()
        self.failures = self.failures | {version: f"{type(error).__name__}: {error}"}
