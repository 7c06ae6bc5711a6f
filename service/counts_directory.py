"""Directories in which the processes of one service share what they count, and what is left of killed ones."""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.process_state import LOCK, is_free

log = logging.getLogger(__name__)

COUNTS_PREFIX = "adsieve-counts-"

_SUPERVISOR = f"supervisor{LOCK}"
_YOUNG_S = 60.0
"""A directory without a lock may be that of a service which is just beginning."""


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Mark a directory as that of a service that lives, until it ends in whatever way."""
    lock = os.open(directory / _SUPERVISOR, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove this user's directories that no process holds any more: their supervisor was killed, its workers ended."""
    for directory in parent.glob(f"{COUNTS_PREFIX}*"):
        try:
            if _is_abandoned(directory):
                shutil.rmtree(directory)
                log.info("%s is removed: its service was killed", directory)
        except OSError as error:  # it is somebody else's, or being removed
            log.debug("%s is left alone: %s", directory, error)


def _is_abandoned(directory: Path) -> bool:
    status = directory.lstat()
    if not directory.is_dir() or directory.is_symlink() or status.st_uid != os.getuid():
        return False
    locks = list(directory.glob(f"*{LOCK}"))
    if not locks and time.time() - status.st_mtime < _YOUNG_S:
        return False
    return all(is_free(lock) for lock in locks)
