"""Work that is done again and again while an application lives, each in a thread of its own."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager

log = logging.getLogger(__name__)


@asynccontextmanager
async def repeating(
    works: Sequence[tuple[Callable[[], None], float]],
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Do each work again and again, with its pause in seconds between two times; none waits for another.

    What a work raises is logged, and it is done again. Yields what waits until the first of the works was done once.
    """
    threads = ThreadPoolExecutor(len(works), thread_name_prefix="follow")
    done = [asyncio.Event() for _ in works]
    tasks = [asyncio.create_task(_repeat(threads, *work, once)) for work, once in zip(works, done, strict=True)]
    try:
        yield done[0].wait
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        threads.shutdown(cancel_futures=True)


async def _repeat(threads: Executor, work: Callable[[], None], interval_s: float, once: asyncio.Event) -> None:
    """In a thread: it may block, the event loop may not."""
    while True:
        try:
            await asyncio.get_running_loop().run_in_executor(threads, work)
        except Exception:
            log.exception("%s failed", work)
        once.set()
        await asyncio.sleep(interval_s)
