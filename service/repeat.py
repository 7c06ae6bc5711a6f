"""Work that is done again and again while an application lives, each in a thread of its own."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager

log = logging.getLogger(__name__)


@asynccontextmanager
async def repeating(works: Sequence[tuple[Callable[[], None], float]]) -> AsyncIterator[None]:
    """Do each work again and again, with its pause in seconds between two times; none waits for another.

    What a work raises is logged, and it is done again.
    """
    threads = ThreadPoolExecutor(len(works), thread_name_prefix="follow")
    tasks = [asyncio.create_task(_repeat(threads, work, interval_s)) for work, interval_s in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        threads.shutdown(cancel_futures=True)


async def _repeat(threads: Executor, work: Callable[[], None], interval_s: float) -> None:
    """In a thread: it may block, the event loop may not."""
    while True:
        try:
            await asyncio.get_running_loop().run_in_executor(threads, work)
        except Exception:
            log.exception("%s failed", work)
        await asyncio.sleep(interval_s)
