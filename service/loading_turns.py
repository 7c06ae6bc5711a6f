"""One process of a host loads a release at a time: all at once would leave requests too little of the cores."""

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

PATIENCE_S = 30.0
"""After which a process loads beside another, which may wait for a host of the heavy stage."""

_FILE, _LOOK_S = "loading", 0.05


@contextmanager
def loading_turn(
    directory: Path | None, stopping: threading.Event, *, patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """Within it no other process of the host is in its own; not before it is this one's turn, or patience is over.

    Args:
        directory: Shared by the processes of one ``adsieve serve``; None for a process alone.
        stopping: Set when the process is about to end: then there is nothing to wait for.
        patience_s: Longest wait.
    """
    with ExitStack() as turn:
        if directory is not None:
            with suppress(OSError):  # a directory that somebody removed is no reason to load nothing any more
                file = turn.enter_context((directory / _FILE).open("wb"))  # its end, or a kill, ends the turn
                end = time.monotonic() + patience_s
                while not _is_taken(file) and time.monotonic() < end and not stopping.wait(_LOOK_S):
                    pass
        yield


def _is_taken(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
