"""Where the processes of a host leave what they share: among the user's caches, else in what one service shares."""

import tempfile
from pathlib import Path

from service.process_state import shared_directory


def host_directory(caches: Path) -> Path | None:
    """A directory of the user's caches where it can be written to, else one of its name for this service alone.

    Returns:
        None where neither is: then a process knows of itself alone.
    """
    shared = shared_directory()
    places = [caches] if shared is None else [caches, shared / caches.name]
    return next((place for place in places if _is_writable(place)), None)


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False
