"""Memory that was freed, back to the system.

A release that is replaced leaves hundreds of MiB of holes in the C library's heaps. glibc keeps them for what comes,
and what comes with the next release finds many of them too small; so a process would grow with each release. Hence what
lies in holes goes back once a release was replaced, and no block as large as weights lies in a heap.
"""

import ctypes
import gc
import os
from functools import cache

LARGE_BYTES = 1 << 20
"""Weights are larger, and arrays of a request smaller: those of 1,000 candidates and of batches of 8 times 100."""
_KEPT_BYTES = 2 * LARGE_BYTES
"""Of a heap's free end; glibc has them in this proportion."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of ``mallopt`` in glibc's malloc.h."""
_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": "", "MALLOC_TRIM_THRESHOLD_": "", "GLIBC_TUNABLES": "_threshold"}
_HEAPS = {"MALLOC_ARENA_MAX": "", "GLIBC_TUNABLES": "arena_max"}
"""By which an operator sets a limit, where they say this; glibc then moves none by itself."""


def set_up_heap() -> bool:
    """Let blocks of ``LARGE_BYTES`` have pages of their own for good, and all threads share one heap for the others.

    For the beginning of a process that serves. By itself glibc gives blocks from 128 KiB on their own pages until the
    first such block is freed: then blocks of its size, up to 32 MiB, lie in the heaps of threads from there on. Weights
    of later releases would lie there, between small blocks that stay. Of heaps it has up to eight a core, and each new
    thread that loads a release may leave holes in another one.

    Returns:
        Whether large blocks are kept apart: not where the C library is another one, or an operator has set it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    if not _is_set(_HEAPS):
        mallopt(_ARENA_MAX, 1)
    return not _is_set(_BLOCKS) and bool(
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )


def _is_set(settings: dict[str, str]) -> bool:
    return any(name in os.environ and what in os.environ[name] for name, what in settings.items())


@cache
def _trim() -> "ctypes._NamedFuncPointer | None":
    """``malloc_trim`` of glibc; None where the C library is another one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> bool:
    """Return what is free to the system; whether any was. It takes milliseconds, without the interpreter's lock."""
    trim = _trim()
    return trim is not None and bool(trim(0))


def settle() -> None:
    """Let no collection go through what is here any more.

    What a first release imports are some 100,000 objects, and every collection of the oldest ones would go through
    them: 30 to 60 ms in which nobody is answered, some times a minute. A release itself has 2,000.
    """
    gc.collect()
    gc.freeze()
