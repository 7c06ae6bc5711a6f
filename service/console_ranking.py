"""Ranks requests of the console: by what serves, and beside it by another release that the store keeps.

Nothing of it is counted or logged for training. One request is ranked at a time in a process. A release that was loaded
to be compared is let go with the answer, and one process of a host loads one at a time: it takes as much memory as what
serves, which every worker would otherwise take once more.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime

from msgspec import structs

from contracts.caches import user_caches
from contracts.errors import ArtifactError, RequestError
from contracts.locks import one_at_a_time
from contracts.release import Release
from engines.device_memory import DeviceMemory
from engines.gpu import Gpu
from engines.names import EXACT_ENGINE, GPU_ENGINES
from indexing.overlay_private import private_live_index
from indexing.store import DirectoryStore
from indexing.store_recovery import readable_releases
from service.api import RankRequest
from service.console_api import ConsoleRanked, ConsoleRankRequest, ConsoleRankResponse
from service.deadline import Deadline
from service.follower import Follower
from service.heavies import REMOTE, usual_survivors
from service.host_directory import host_directory
from service.problems import HttpProblem
from service.ranker import rank
from service.releases import LoadedRelease, Snapshot, load_release
from service.request_ids import new_request_id
from service.routing import AUTO, route
from service.serving_metrics import engines_of
from service.settings import Settings
from service.workers import Workers

COMPARING = "comparing.lock"


class ConsoleRanking:
    """Ranks for the console.

    Args:
        follower: Holds what serves; each request takes it once.
        settings: The limits and policies of the service.
        workers: Ask the heavy host, where another host runs the heavy stage; else it runs in the calling thread.
    """

    def __init__(self, follower: Follower, settings: Settings, workers: Workers) -> None:
        self._follower, self._settings, self._workers = follower, settings, workers
        self._free = threading.Lock()

    def answer(self, asked: ConsoleRankRequest) -> ConsoleRankResponse:
        """Rank a request once, or twice; blocks.

        Raises:
            RequestError: As ``rank``; or there is no such release, or the scenario is ``auto`` where one is asked for.
            ArtifactError: The other release cannot be loaded.
            HttpProblem: 503, another request of the console is being ranked, or another process of the host compares.
        """
        with self._alone(), nullcontext() if asked.against is None else _alone_on_host():
            snapshot = self._follower.snapshot
            request = _settled(asked.request)
            if asked.against is None:
                return ConsoleRankResponse(serving=self._ranked(request, snapshot, self._settings), against=None)
            alike = self._settings.model_copy(update={"ab": {}})
            first = self._ranked(request, snapshot, alike)
            return ConsoleRankResponse(serving=first, against=self._by_other(request, snapshot, asked.against))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise HttpProblem(503, "overloaded", "another request of the console is being ranked, try again later")
        try:
            yield
        finally:
            self._free.release()

    def _by_other(self, request: RankRequest, snapshot: Snapshot, wanted: str) -> ConsoleRanked:
        """The answer of another release; its index may be older than one that serves may be."""
        began = time.perf_counter()
        other = self._other(request.scenario, snapshot, wanted)
        load_ms = 1000 * (time.perf_counter() - began)
        lenient = self._settings.model_copy(update={"ab": {}, "old_index": "warn"})
        beside = Snapshot({**snapshot.releases, other.scenario: other})
        return self._ranked(request, beside, lenient, load_ms=load_ms)

    def _ranked(
        self, request: RankRequest, snapshot: Snapshot, settings: Settings, *, load_ms: float = 0.0
    ) -> ConsoleRanked:
        runner = self._workers.heavy if self._workers.is_remote else None
        deadline = Deadline() if request.timeout_ms is None else Deadline.after_ms(request.timeout_ms)
        outcome = rank(request, snapshot, settings, deadline, runner=runner)
        releases = {part.release.scenario: part.release for part in outcome.result.scored}
        return ConsoleRanked(
            releases={scenario: loaded.release.release_id for scenario, loaded in releases.items()},
            engines={scenario: engines_of(loaded) for scenario, loaded in releases.items()},
            load_ms=load_ms,
            answer=outcome.response,
        )

    def _other(self, scenario: str, snapshot: Snapshot, wanted: str) -> LoadedRelease:
        if scenario == AUTO:
            raise RequestError("expected one scenario, whose releases are compared, got auto", field="request.scenario")
        serving = route(scenario, snapshot)[0][0]
        for loaded in snapshot.loaded():
            if loaded.release.release_id == wanted and loaded.scenario == scenario:
                return loaded
        store = self._follower.store
        kept = readable_releases(store.root, scenario)  # by what the store holds: no path is made of what was asked
        if wanted not in kept:
            known = ", ".join(kept) or "none"
            raise RequestError(f"scenario {scenario!r} keeps no release {wanted!r}; it has: {known}", field="against")
        try:
            return self._load(kept[wanted], store, serving, snapshot)
        except OSError as error:  # it was pruned meanwhile, or its disk fails
            raise ArtifactError(f"release {wanted!r} of scenario {scenario!r} cannot be read: {error}") from error

    def _load(
        self, release: Release, store: DirectoryStore, serving: LoadedRelease, snapshot: Snapshot
    ) -> LoadedRelease:
        """On the engines of what serves, so that these make no difference, but nothing of it on a GPU: that is for what
        serves. The updates of the day are in effect."""
        heavy_engine = REMOTE if self._workers.is_remote else EXACT_ENGINE
        if serving.heavy is not None:
            heavy_engine = _here(serving.heavy.engine)
        log = store.update_log()
        return load_release(
            release,
            store.paths(release),
            serving=snapshot,
            open_live=lambda index, two_tower, heavy: private_live_index(index, two_tower, heavy, log),
            engine_threads=self._settings.engine_threads,
            query_engine=_here(serving.tower.engine),
            heavy_engine=heavy_engine,
            survivors=usual_survivors(self._settings.survivors),
            gpu=Gpu(memory=DeviceMemory(0)),
        )


@contextmanager
def _alone_on_host() -> Iterator[None]:
    """While no other process of this host compares releases; where nothing can be written, of this process."""
    directory = host_directory(user_caches() / "console")
    if directory is None:
        yield
        return
    with one_at_a_time(directory / COMPARING, limit_s=0.0) as is_held:
        if not is_held:
            raise HttpProblem(503, "overloaded", "another comparison is being made on this host, try again later")
        yield


def _here(engine: str) -> str:
    """The engine, or one for the CPU where it needs a GPU.

    Example:
        >>> _here("openvino_fp32"), _here("torch_cuda")
        ('openvino_fp32', 'onnxruntime_cpu')
    """
    return EXACT_ENGINE if engine in GPU_ENGINES else engine


def _settled(request: RankRequest) -> RankRequest:
    """Explained, and with the id and the moment that every release is to rank it by."""
    return structs.replace(
        request,
        explain=True,
        request_id=request.request_id or new_request_id(),
        event_time=request.event_time or datetime.now(UTC),
    )
