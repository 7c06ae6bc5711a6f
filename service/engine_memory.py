"""Where the processes of a host keep which engine they chose, so that all of them serve a model with the same one."""

import tempfile
from pathlib import Path

from contracts.bundle import Bundle
from engines.memory import EngineMemory, cache_directory
from service.process_state import shared_directory


def engine_memory(kind: str, bundle: Bundle, threads: int, prepared: list[int] | None = None) -> EngineMemory:
    """What is remembered of one version of a model.

    Args:
        kind: Of the model.
        threads: Of one call.
        prepared: Numbers of ads for which an engine prepares.
    """
    about = [kind, bundle.manifest.version, prepared or []]
    return EngineMemory(about, threads=threads, directory=_directory())


def _directory() -> Path:
    """The user's caches; where they cannot be written to, what the processes of this service share."""
    caches, shared = cache_directory(), shared_directory()
    return caches if shared is None or _is_writable(caches) else shared / caches.name


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False
