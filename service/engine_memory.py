"""Where the processes of a host keep which engine they chose, so that all of them serve a model with the same one."""

from contracts.bundle import Bundle
from engines.memory import EngineMemory, cache_directory
from service.host_directory import host_directory


def engine_memory(kind: str, bundle: Bundle, threads: int, prepared: list[int] | None = None) -> EngineMemory:
    """What is remembered of one version of a model.

    Args:
        kind: Of the model.
        threads: Of one call.
        prepared: Numbers of ads for which an engine prepares.
    """
    about = [kind, bundle.manifest.version, prepared or []]
    return EngineMemory(about, threads=threads, directory=host_directory(cache_directory()))
