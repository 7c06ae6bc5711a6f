"""What ranks, alive between startup and shutdown of the application: threads for each stage, with own limits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

from service.batching import Batcher, BatchLimits
from service.heavy import run_calls
from service.heavy_runner import BatchedRunner, HeavyRunner
from service.settings import Settings


class Workers:
    """Threads that prepare requests, and threads that run the heavy ranker, which never wait for one another.

    Args:
        settings: How many of each, and how calls of the heavy ranker are put together.
        observe: Told of each batch of the heavy ranker: calls, and seconds that the first of them waited.
    """

    def __init__(
        self, settings: Settings, observe: Callable[[int, float], None] = lambda calls, waited_s: None
    ) -> None:
        self._settings, self._observe = settings, observe
        self._stack: ExitStack | None = None
        self._rank: ThreadPoolExecutor | None = None
        self._heavy: HeavyRunner | None = None

    def __enter__(self) -> "Workers":
        settings = self._settings
        limits = BatchLimits(
            calls=settings.heavy_batch,
            rows=settings.heavy_batch_rows,
            wait_s=settings.heavy_batch_wait_ms / 1000,
            waiting=settings.heavy_queue,
        )
        with ExitStack() as stack:
            if settings.rank_threads:
                self._rank = stack.enter_context(ThreadPoolExecutor(settings.rank_threads, "rank"))
            batcher = Batcher(
                "the heavy stage", run_calls, threads=settings.heavy_threads, limits=limits, observe=self._observe
            )
            self._heavy = BatchedRunner(stack.enter_context(batcher))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = self._rank = self._heavy = None

    @property
    def rank(self) -> ThreadPoolExecutor | None:
        """Threads for the light stage; None where it runs on the event loop."""
        return self._rank

    @property
    def heavy(self) -> HeavyRunner:
        if self._heavy is None:
            raise RuntimeError("the application's lifespan has not begun or is over: no thread ranks")
        return self._heavy
