"""Keeps what a long job frees for its next arrays, instead of giving it to the system and asking for it again.

A build allocates arrays of megabytes again and again, in several threads. By default glibc gives each thread a heap of
its own and large blocks back to the system: the same pages are cleared and counted many times, and how many heaps are
full at once is left to chance. Arrow would keep a heap more, and one in each of its threads. Here two heaps serve all
threads, Arrow's too.
"""

import ctypes
from contextlib import suppress

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of ``mallopt`` in glibc's malloc.h."""
_SETTINGS = {_ARENA_MAX: 2, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 1 << 30}


def keep_freed_memory() -> None:
    """Set the heap of this process; for a program's beginning. Where the C library is another one, nothing is done."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _SETTINGS.items():
            mallopt(parameter, value)
        pa.set_memory_pool(pa.system_memory_pool())


def give_back_freed_memory() -> None:
    """Give all to the system that is kept: for the end of a step that took more than what follows."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
