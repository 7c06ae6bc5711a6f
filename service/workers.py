"""The threads that rank, alive between startup and shutdown of the application."""

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


class Workers:
    """Two pools of one size: one ranks requests, one runs the heavy stage of those with a deadline.

    A request in the first waits for its heavy stage in the second, so they must not be one pool.

    Args:
        size: Threads of each.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None

    def __enter__(self) -> "Workers":
        self._pools = ThreadPoolExecutor(self._size, "rank"), ThreadPoolExecutor(self._size, "heavy")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._started():
            pool.shutdown(cancel_futures=True)
        self._pools = None

    @property
    def rank(self) -> ThreadPoolExecutor:
        return self._started()[0]

    @property
    def heavy(self) -> ThreadPoolExecutor:
        return self._started()[1]

    def _started(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        if self._pools is None:
            raise RuntimeError("the application's lifespan has not begun or is over: no thread ranks")
        return self._pools
