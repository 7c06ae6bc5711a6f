"""Makes a release of the store ready to serve: opened, verified, placed, its updates in effect, warmed up."""

import logging
import threading
from collections.abc import Callable, Sequence

from contracts.errors import ArtifactError
from contracts.release import Release
from indexing.store import DirectoryStore
from service.background import behind_requests
from service.batch_trials import with_trials
from service.device_engines import DeviceEngines
from service.heavies import REMOTE, usual_survivors
from service.heavy_watch import HeavyWatch
from service.loading_turns import loading_turn
from service.overlays import Overlays
from service.process_state import shared_directory
from service.releases import LoadedRelease, Snapshot, load_release
from service.settings import Settings
from service.stopping import StoppingError
from service.warmup import warm_up
from service.workers import Workers

log = logging.getLogger(__name__)


class ReleaseLoader:
    """Loads releases, one at a time.

    Args:
        store: Where they are.
        settings: Threads, engines, policies.
        overlays: Bring the updates of the day into effect.
        heavy: Waits for the heavy host, and asks it.
        devices: What is put on a GPU.
        workers: Run query towers; None where nothing but a test asks.
        doubt: Told of a release whose files could not be read.
        stopping: Set when the process is about to end.
    """

    def __init__(
        self,
        store: DirectoryStore,
        settings: Settings,
        *,
        overlays: Overlays,
        heavy: HeavyWatch,
        devices: DeviceEngines,
        workers: Workers | None,
        doubt: Callable[[Release], None],
        stopping: threading.Event,
    ) -> None:
        self._store, self._settings, self._overlays, self._heavy = store, settings, overlays, heavy
        self._devices, self._doubt, self._stopping = devices, doubt, stopping
        self._towers = None if workers is None else workers.towers

    def load(self, release: Release, serving: Snapshot) -> LoadedRelease:
        """A release that may serve; where others serve meanwhile, made behind their requests.

        Args:
            serving: What serves now; what it holds too is shared.

        Raises:
            StoppingError: The process is about to end.
            AdsieveError: Something is wrong with it; as ``load_release`` and ``warm_up``.
        """
        if self._stopping.is_set():
            raise StoppingError("the process stops")
        if not serving.releases:
            return self._load(release, serving)
        threads = self._settings.engine_threads
        with loading_turn(shared_directory(), self._stopping):
            return behind_requests(lambda: self._load(release, serving), threads_of_engine=threads)

    def _load(self, release: Release, serving: Snapshot) -> LoadedRelease:
        settings = self._settings
        try:
            loaded = load_release(
                release,
                self._store.paths(release),
                serving=serving,
                open_live=self._overlays.open,
                engine_threads=settings.engine_threads,
                query_engine=settings.query_engine,
                heavy_engine=REMOTE if settings.heavy_url else settings.heavy_engine,
                survivors=usual_survivors(settings.survivors),
                gpu=self._devices.gpu,
            )
            loaded = with_trials(self._devices.placed(loaded), settings, self._towers, serving.loaded())
        except (ArtifactError, OSError):
            self._doubt(release)
            raise
        self._heavy.wait_for(loaded)
        num_requests = warm_up(loaded, settings, self._heavy.runner)
        log.info("release %s loaded, warmed up with %d saved requests", release.release_id, num_requests)
        return loaded

    def load_older(self, scenario: str, serving: Snapshot) -> LoadedRelease | None:
        """The newest release of a scenario, but for the last, that may serve.

        None where none may, or the process is about to end.
        """
        for name in self._older(scenario):
            try:
                return self.load(self._store.release(scenario, name), serving)
            except StoppingError:
                return None
            except Exception as error:
                log.error("release %s of %s is refused too: %s", name, scenario, error)
        return None

    def _older(self, scenario: str) -> Sequence[str]:
        try:
            return self._store.names(scenario)[1:]
        except Exception as error:
            log.error("releases of %s cannot be listed: %s", scenario, error)
            return ()
