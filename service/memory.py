"""Memory that was freed, back to the system.

A release that is replaced leaves hundreds of MiB of holes in the C library's heap. glibc keeps them for what comes, and
what comes with the next release finds many of them too small; so a process would grow with each release for a while.
"""

import ctypes
from functools import cache


@cache
def _trim() -> "ctypes._NamedFuncPointer | None":
    """``malloc_trim`` of glibc; None where the C library is another one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> bool:
    """Return what is free to the system; whether any was. It takes milliseconds, without the interpreter's lock."""
    trim = _trim()
    return trim is not None and bool(trim(0))
