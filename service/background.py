"""Work that requests go before: in a thread of its own, behind the others wherever they want the same core."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

NICENESS = 5
"""A third of what another thread gets of a core that both want: a release loads later under overload, but it does load.
Further behind, a thread that has the interpreter's lock and no core would hold up whatever answers."""


def behind_requests(work: Callable[[], T], *, threads_of_engine: int) -> T:
    """Do some work behind whatever answers requests, wait for it, and return what it does; its errors are raised.

    On Linux a thread has a priority of its own, and one who is not root never gets it back: hence a thread for each
    piece of work. Threads that it starts inherit it. An engine that runs a graph in several keeps them for serving, so
    that work which may open such an engine stays where it is.

    Args:
        threads_of_engine: Of one graph.
    """
    if threads_of_engine != 1 or not sys.platform.startswith("linux"):
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix="behind", initializer=_go_behind) as thread:
        return thread.submit(work).result()


def _go_behind() -> None:
    own = threading.get_native_id()
    with suppress(OSError):  # where it is already further behind: it stays there
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)
