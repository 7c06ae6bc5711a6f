"""What ranks, alive between startup and shutdown of the application: threads for each stage, with own limits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

import numpy as np

from service.batching import Batcher, BatchLimits
from service.heavy import HeavyCall, run_calls
from service.heavy_runner import BatchedRunner, HeavyRunner
from service.query_towers import BatchedTowers
from service.remote_heavy import RemoteRunner
from service.settings import Settings


class Workers:
    """Threads that prepare requests, and what runs query towers and the heavy ranker.

    Args:
        settings: How many threads, how calls of the heavy ranker are put together, where another host runs them.
        observe: Told of each batch of the heavy ranker: calls, and seconds that the first of them waited.
        remote: Whether another host runs the heavy stage.
        observe_queries: Told likewise of each batch of the query tower.
    """

    def __init__(
        self,
        settings: Settings,
        observe: Callable[[int, float], None],
        *,
        remote: bool,
        observe_queries: Callable[[int, float], None] = lambda requests, waited_s: None,
    ) -> None:
        self._settings, self._observe, self._is_remote = settings, observe, remote
        self.towers = BatchedTowers(settings, observe_queries)
        self._stack: ExitStack | None = None
        self._rank: ThreadPoolExecutor | None = None
        self._heavy: HeavyRunner | None = None
        self._num_waiting: Callable[[], int] = int

    def __enter__(self) -> "Workers":
        with ExitStack() as stack:
            if self._settings.rank_threads:
                stack.enter_context(self.towers)
                self._rank = stack.enter_context(ThreadPoolExecutor(self._settings.rank_threads, "rank"))
            if self._is_remote:
                remote = stack.enter_context(RemoteRunner(self._settings))
                self._heavy, self._num_waiting = remote, remote.num_waiting
            else:
                batcher = stack.enter_context(self._batcher())
                self._heavy, self._num_waiting = BatchedRunner(batcher), batcher.__len__
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = self._rank = self._heavy = None

    @property
    def is_remote(self) -> bool:
        """Whether another host runs the heavy stage."""
        return self._is_remote

    @property
    def rank(self) -> ThreadPoolExecutor | None:
        """Threads for the light stage; None where it runs on the event loop."""
        return self._rank

    @property
    def heavy(self) -> HeavyRunner:
        if self._heavy is None:
            raise RuntimeError("the application's lifespan has not begun or is over: no thread ranks")
        return self._heavy

    @property
    def remote(self) -> RemoteRunner | None:
        """What asks the host of the heavy stage; None where there is none, and before the application begins."""
        return self._heavy if isinstance(self._heavy, RemoteRunner) else None

    @property
    def heavy_waiting(self) -> int:
        """Calls of this process that wait for the heavy ranker, or for a connection to its host."""
        return self._num_waiting()

    def _batcher(self) -> Batcher[HeavyCall, np.ndarray]:
        settings = self._settings
        limits = BatchLimits(
            calls=settings.heavy_batch,
            rows=settings.heavy_batch_rows,
            wait_s=settings.heavy_batch_wait_ms / 1000,
            waiting=settings.heavy_queue,
        )
        return Batcher(
            "the heavy stage", run_calls, threads=settings.heavy_threads, limits=limits, observe=self._observe
        )
