"""Work that one process of a host does for all: the others wait for it, though not for ever."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK_S = 0.02


@contextmanager
def one_at_a_time(path: Path, *, limit_s: float) -> Iterator[bool]:
    """Hold an exclusive lock on the file ``path``, which is made; it ends with its process.

    Args:
        limit_s: How long to wait for another process. One that is stuck must not keep the rest.

    Yields:
        Whether it is held; not so after ``limit_s``, or where the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _taken(handle, time.monotonic() + limit_s)
    finally:
        os.close(handle)


def _taken(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:  # held by another, or a file system without locks
            if time.monotonic() >= deadline:
                return False
        time.sleep(_TICK_S)
