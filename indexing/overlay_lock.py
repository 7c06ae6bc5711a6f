"""The lock of an overlay: one process of a host writes it at a time."""

import fcntl
import os
import shutil
from pathlib import Path

from contracts.errors import AdsieveError

ELSEWHERE = "--local or ADSIEVE_LOCAL names another directory"
LOCK = ".lock"


class OverlayTakenError(AdsieveError):
    """Another process writes the overlay."""


def lock_overlay(directory: Path) -> int:
    """Take the lock, without waiting; it ends when the handle that is returned is closed, or with the process.

    Raises:
        OverlayTakenError: Another process holds it.
        AdsieveError: The directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise AdsieveError(f"{directory}: the overlay cannot be written here: {error.strerror}; {ELSEWHERE}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_here = os.path.samestat(os.fstat(handle), os.stat(directory / LOCK))
    except OSError:
        is_here = False
    if not is_here:  # held by another, or removed by one a moment ago
        os.close(handle)
        raise OverlayTakenError(f"{directory}: another process writes this overlay")
    return handle


def remove_overlay(directory: Path) -> None:
    """Remove an overlay that no process writes; what readers have mapped stays readable."""
    try:
        handle = lock_overlay(directory)
    except AdsieveError:
        return
    try:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(handle)
