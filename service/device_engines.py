"""What a process has on its GPU, over all releases: one budget, plans that are built aside, engines that come later."""

import logging
from dataclasses import replace

from contracts.bundle import open_bundle
from engines.device_memory import MIB, DeviceMemory
from engines.gpu import Gpu
from engines.plan_builds import PlanBuilds
from engines.protocol import EngineNotNowError
from indexing.store_files import ReleasePaths
from service.batch_trials import with_trial
from service.device_light import with_device
from service.engine_memory import engine_memory
from service.heavies import LoadedHeavy, load_heavy, usual_survivors
from service.releases import LoadedRelease
from service.settings import Settings

log = logging.getLogger(__name__)

_LATER = ("auto", "tensorrt")
"""Choices of an engine for which one that is not there yet may come."""


class DeviceEngines:
    """The GPU of a process, where it has one; without one nothing is ever held or built.

    Args:
        settings: Which engines are wanted, and the budget.
        plans: Builds TensorRT's plans aside.
        device: As torch names it.
    """

    def __init__(self, settings: Settings, plans: PlanBuilds | None = None, *, device: str = "cuda") -> None:
        limit = settings.device_memory_mib
        self._settings, self._plans, self._seen = settings, plans or PlanBuilds(), 0
        self.gpu = Gpu(device=device, memory=DeviceMemory(None if limit is None else limit * MIB), plan=self._plans)

    @property
    def plans_waiting(self) -> int:
        """TensorRT plans that are being built or wait for it."""
        return self._plans.num_waiting

    def placed(self, loaded: LoadedRelease) -> LoadedRelease:
        """The release with its light stage where the settings want it; errors are those of ``with_device``."""
        return with_device(loaded, self._settings.light_device, self.gpu)

    def has_news(self) -> bool:
        """Whether a plan was built since this was last asked."""
        seen, self._seen = self._seen, self._plans.count
        return seen != self._seen

    def renewed(self, loaded: LoadedRelease, paths: ReleasePaths, heavies: dict[str, LoadedHeavy]) -> LoadedRelease:
        """The release with the engines that can serve it now; its query tower changes in place.

        Args:
            paths: Where its bundles are.
            heavies: Heavy rankers opened anew meanwhile, by version; gains one where this release has one.
        """
        settings = self._settings
        if settings.query_engine in _LATER:
            bundle = open_bundle(paths.two_tower, kind="two_tower")
            try:
                threads = settings.engine_threads
                memory = engine_memory("query tower", bundle, threads)
                loaded.tower.choose_query_engine(
                    bundle, settings.query_engine, threads=threads, gpu=self.gpu, memory=memory
                )
            except EngineNotNowError:
                log.info("query tower %s still runs on %s", loaded.release.two_tower, loaded.tower.engine)
        heavy = loaded.heavy
        if heavy is None or heavy.serving is None or paths.heavy is None or settings.heavy_engine not in _LATER:
            return loaded
        if heavy.version not in heavies:
            opened = load_heavy(
                open_bundle(paths.heavy, kind="heavy"),
                threads=settings.engine_threads,
                engine=settings.heavy_engine,
                survivors=usual_survivors(settings.survivors),
                gpu=self.gpu,
            )
            heavies[heavy.version] = with_trial(opened, settings)
        return replace(loaded, heavy=heavies[heavy.version])
