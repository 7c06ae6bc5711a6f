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
TIDY_ADS = 100_000
"""After so many ads a build gives back what lies free between what is in use, of which there is more and more for the
first million ads. Giving it back after every batch costs a twentieth of the time."""
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


class Tidy:
    """Gives back what is free once ``TIDY_ADS`` more ads were worked off."""

    def __init__(self) -> None:
        self._ads = 0

    def __call__(self, num_ads: int) -> None:
        """Count ads that were worked off."""
        self._ads += num_ads
        if self._ads >= TIDY_ADS:
            give_back_freed_memory()
            self._ads = 0
