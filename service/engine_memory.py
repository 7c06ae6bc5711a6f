"""Where the processes of a host keep which engine they chose, so that all of them serve a model with the same one."""

from contracts.bundle import GRAPHS, Bundle
from engines.memory import EngineMemory, cache_directory
from service.host_directory import host_directory


def engine_memory(kind: str, bundle: Bundle, threads: int, prepared: list[int] | None = None) -> EngineMemory:
    """What is remembered of models of one shape: the next one of tomorrow night is as fast on the same engine.

    Comparing engines anew for each version would also mean to do it beside requests, which tells little of any. Whether
    the engine keeps a version's parity rows is checked for each.

    Args:
        kind: Of the model.
        threads: Of one call.
        prepared: Numbers of ads for which an engine prepares.
    """
    graphs = {name: (bundle.path / name).stat().st_size for name in GRAPHS[bundle.manifest.kind]}
    about = [kind, bundle.manifest.dims, graphs, prepared or []]
    return EngineMemory(about, threads=threads, directory=host_directory(cache_directory()))
