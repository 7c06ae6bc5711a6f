"""Follows the store's pointers: loads a new release aside, then swaps one reference. A bad one is refused, loudly."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from contracts.release import Release
from indexing.store import DirectoryStore
from service.ages import is_old
from service.batch_trials import with_trials
from service.device_engines import DeviceEngines
from service.experiments import second_release
from service.faults import Failure, Faults
from service.heavies import LoadedHeavy
from service.heavy_watch import HeavyWatch, shown_host
from service.overlays import overlay_name, overlays_of
from service.refusals import Refusals
from service.release_loader import ReleaseLoader
from service.releases import Kind, LoadedRelease, Snapshot
from service.serving import Serving
from service.settings import Settings
from service.stopping import StoppingError
from service.telemetry import Telemetry
from service.workers import Workers

log = logging.getLogger(__name__)


class Follower:
    """Holds the serving snapshot and keeps it up with the store.

    ``poll`` blocks; ``snapshot`` may be read from any thread. A release that fails stays out and the one before serves
    on; it is tried again after ``failed_retry_s``, so that a repaired store needs no restart. A process that starts
    while the current release is broken serves the newest older one that loads.

    Args:
        store: Whose pointers and updates are followed, on this host: the mirror of a Redis store.
        settings: Threads, policies, pauses.
        telemetry: Counts failures and shows what serves.
        workers: Ask the heavy host, where another host runs the heavy stage, and run query towers; None where nothing
            but this object does.
        is_mirror: Whether the store is the copy of another one, empty until the first ``refresh``.
        devices: What is put on a GPU; one as the settings say unless given.
        settle: Called once, before it is first ready.
        doubt: Told of a release whose files could not be read, so that a mirror fetches what is damaged again.
    """

    def __init__(
        self,
        store: DirectoryStore,
        settings: Settings,
        telemetry: Telemetry,
        *,
        doubt: Callable[[Release], None] = lambda release: None,
        workers: Workers | None = None,
        is_mirror: bool = False,
        devices: DeviceEngines | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._stopping = threading.Event()
        self._heavy = HeavyWatch(settings, workers, self._stopping)
        self.devices = devices or DeviceEngines(settings)
        self._towers = None if workers is None else workers.towers
        self._store, self._settings, self._telemetry = store, settings, telemetry
        self._overlays = overlays_of(store, settings, self._stopping)
        self._loader = ReleaseLoader(
            store,
            settings,
            overlays=self._overlays,
            heavy=self._heavy,
            devices=self.devices,
            workers=workers,
            doubt=doubt,
            stopping=self._stopping,
        )
        self._lock, self._serving = threading.Lock(), Serving()
        self._loaded_at: dict[str, float] = {}
        self._refusals = Refusals(settings, telemetry)
        self._faults = Faults(settings, telemetry, is_mirror=is_mirror)
        self._held_before: list[LoadedRelease] = []
        self._is_ready, self._settle, self._followed = False, settle, frozenset[str]()

    @property
    def store(self) -> DirectoryStore:
        return self._store

    @property
    def snapshot(self) -> Snapshot:
        return self._serving.snapshot

    @property
    def failures(self) -> dict[str, Failure]:
        """Failures that still stand, by scenario."""
        return self._refusals.standing

    @property
    def faults(self) -> dict[str, Failure]:
        """What stands against following the store's news, by what was being done: ``refresh``, ``updates``.

        ``store`` is that it holds no release, ``heavy`` what is waited for or fails on the host of the heavy stage.
        """
        fault = self._heavy.fault(self.snapshot.loaded())
        heavy = {} if fault is None else {"heavy": Failure(release_id="", error=fault.error, at=fault.at)}
        return self._faults.standing | heavy

    @property
    def loaded_at(self) -> dict[str, float]:
        """When the serving release of each scenario was loaded, Unix time."""
        return dict(self._loaded_at)

    @property
    def old(self) -> list[str]:
        """Scenarios whose index is older than ``max_index_age_h``."""
        return [name for name, loaded in self.snapshot.releases.items() if is_old(loaded, self._settings)]

    @property
    def refuses_all(self) -> bool:
        """Whether every index is old and the policy refuses that."""
        return self._settings.old_index == "refuse" and set(self.old) == set(self.snapshot.releases)

    @property
    def is_ready(self) -> bool:
        """True once every scenario of the store had a warm release, and from then on until the process stops."""
        return self._is_ready and not self._stopping.is_set()

    @property
    def is_loading(self) -> bool:
        """Whether it was never ready and a scenario's first release is on its way, not refused."""
        done = {*self.snapshot.releases, *self.failures}
        return not self._is_ready and not self._stopping.is_set() and not self._followed <= done

    @property
    def wanted_seconds(self) -> list[tuple[Kind, str, str, float]]:
        """Second releases that the settings name: for what, scenario, which one, and its share."""
        settings = self._settings
        return [
            *(("arms", scenario, split.release, split.share) for scenario, split in settings.ab.items()),
            *(("shadows", scenario, shadow.release, shadow.share) for scenario, shadow in settings.shadow.items()),
        ]

    def stop(self) -> None:
        """Be ready no more and load nothing: the process is about to end, what it was asked is still answered."""
        self._stopping.set()

    def poll(self, *, retry_failed: bool = False) -> None:
        """Load what the pointers name and is not served yet.

        Args:
            retry_failed: Try failed releases at once.
        """
        with self._lock:
            self._serving.let_go()
            try:
                scenarios = sorted(self._store.scenarios())
            except Exception as error:
                self._refusals.note("", "", error)
                return
            self._refusals.forget("")
            self._faults.note_empty(is_empty=not scenarios)
            self._followed = frozenset(scenarios)
            self._heavy.begin()
            self._held_before = self.snapshot.loaded()  # what was first may become second
            for scenario in scenarios:
                self._follow(scenario, retry_failed)
            for kind, scenario, name, _ in self.wanted_seconds:
                self._follow_second(kind, scenario, name, retry_failed)
            if self.devices.has_news():
                self.attempt("engines", self._renew_engines)
            if {id(loaded) for loaded in self._held_before} != {id(loaded) for loaded in self.snapshot.loaded()}:
                self.attempt("overlays", self._tidy_overlays)
            self._held_before = []
            self._serving.let_go()
            if not self._is_ready and scenarios and all(name in self.snapshot.releases for name in scenarios):
                self._settle()
                self._is_ready = True

    def check_heavy(self) -> None:
        """Note whether the host of the heavy stage is up, and ask it again where it failed."""
        is_up = self._heavy.check(self.snapshot.loaded())
        if self._settings.heavy_url is not None and is_up is not None:
            self._telemetry.heavy_host_up.labels(shown_host(self._settings.heavy_url)).set(is_up)

    def apply_updates(self) -> None:
        """Bring new updates into effect, and tell of them; what serves goes on whatever happens."""
        self.attempt("updates", self._apply)

    def _apply(self) -> None:
        try:
            self._overlays.apply()
        finally:
            self._renew_overlays()
            end, fault = self._overlays.log_end()
            self._telemetry.serving.log_readable(fault is None)
            for loaded in self.snapshot.releases.values():
                self._telemetry.serving.updated(loaded, end, is_old=is_old(loaded, self._settings))
        if fault is not None:
            raise fault

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do something that may fail without harm to what serves; a failure stands until the next success."""
        self._faults.attempt(what, work)

    def close(self) -> None:
        """Let another process of this host apply the updates."""
        self._overlays.close()

    def _renew_overlays(self) -> None:
        """Open again what was replaced by its writer."""
        for loaded in self.snapshot.loaded():
            live = self._overlays.reopen(_overlay_of(loaded)) if loaded.live.is_retired else None
            if live is not None:
                renewed = replace(loaded, live=live, retriever=loaded.retriever.over(live))
                self._serving.swap(partial(Snapshot.replacing, before=loaded, after=renewed))

    def _renew_engines(self) -> None:
        """Let engines that came meanwhile take over."""
        heavies: dict[str, LoadedHeavy] = {}
        for before in self.snapshot.loaded():
            renewed = self.devices.renewed(before, self._store.paths(before.release), heavies)
            renewed = with_trials(renewed, self._settings, self._towers)
            self._serving.swap(partial(Snapshot.with_engines, renewed=renewed))
        for scenario, loaded in self.snapshot.releases.items():
            self._telemetry.serving.loaded(loaded, self._loaded_at[scenario])

    def _follow(self, scenario: str, retry_failed: bool) -> None:
        release_id = ""
        try:
            release = self._store.current(scenario)
            if release is None:
                return
            release_id = release.release_id
            if self._is_current(release) or (not retry_failed and self._refusals.is_paused(scenario, release_id)):
                return
            self._serve(self._held(release) or self._loader.load(release, self.snapshot))
            self._refusals.forget(scenario)
        except StoppingError:
            return
        except Exception as error:  # whatever is wrong with a release, what serves must go on serving
            self._refusals.note(scenario, release_id, error)
            if scenario not in self.snapshot.releases:
                self._fall_back(scenario)

    def _follow_second(self, kind: Kind, scenario: str, name: str, retry_failed: bool) -> None:
        """Hold a second release that the settings name, for a split or a shadow."""
        key, release_id = f"{scenario} ({kind})", name
        try:
            release = second_release(self._store, scenario, name)
            release_id = release.release_id
            held = getattr(self.snapshot, kind).get(scenario)
            if held is None or held.release.release_id != release_id:
                if not retry_failed and self._refusals.is_paused(key, release_id):
                    return
                loaded = self._held(release) or self._loader.load(release, self.snapshot)
                self._serving.swap(lambda held: held.with_release(loaded, kind))
                log.info("release %s of %s is held for %s", release_id, scenario, kind)
            self._refusals.forget(key)
        except StoppingError:
            return
        except Exception as error:
            self._refusals.note(key, release_id, error)
            self._serving.swap(lambda held: held.without(kind, scenario))

    def _held(self, release: Release) -> LoadedRelease | None:
        held = (*self.snapshot.loaded(), *self._held_before)
        found = [one for one in held if one.release.release_id == release.release_id]
        return found[0] if found else None

    def _is_current(self, release: Release) -> bool:
        serving = self.snapshot.releases.get(release.scenario)
        is_current = serving is not None and serving.release.release_id == release.release_id
        if is_current:
            self._refusals.forget(release.scenario)
        return is_current

    def _serve(self, loaded: LoadedRelease) -> None:
        self._serving.swap(lambda held: held.with_release(loaded))
        self._loaded_at[loaded.scenario] = time.time()
        self._telemetry.serving.loaded(loaded, self._loaded_at[loaded.scenario])
        log.info("scenario %s is served by release %s", loaded.scenario, loaded.release.release_id)

    def _fall_back(self, scenario: str) -> None:
        older = self._loader.load_older(scenario, self.snapshot)
        if older is not None:
            self._serve(older)

    def _tidy_overlays(self) -> None:
        """Keep those of indexes that serve or that a rollback can reach."""
        held = self.snapshot.loaded()
        self._overlays.keep({_overlay_of(loaded) for loaded in held}, {loaded.versions.index for loaded in held})


def _overlay_of(loaded: LoadedRelease) -> str:
    return overlay_name(loaded.index, with_heavy=loaded.heavy is not None)
