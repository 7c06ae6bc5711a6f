"""Lets a training process keep the memory that it frees."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library to reuse large freed blocks instead of returning them to the system; for CPU training.

    A step allocates and frees the same large tensors as the step before. By default each goes back to the system and
    its pages are zeroed anew on the next step, which took longer than the look-ups of a batch themselves. The setting
    holds for the whole process. Only glibc has it; elsewhere nothing happens.

    Returns:
        Whether the setting was made.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _LARGEST))
