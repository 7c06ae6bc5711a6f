"""Releases that serve no longer: they end in the thread that follows the store, never in one that answers.

Freeing a compiled graph takes some 25 ms with the interpreter's lock. Whoever lets a release go last frees all of its
graphs at once: where that was a request, it and all that came after it stood for a tenth of a second, and for three
under load. So what is costly is held here until no request has the release, and then let go one by one.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

from engines.protocol import Engine
from service.heavies import LoadedHeavy
from service.releases import LoadedRelease, Snapshot

PAUSES = 3
"""Times as long as a part took: meanwhile requests that stood behind it are answered, at .7 of what a core can do."""


@dataclass
class _Leaving:
    """What is gone once no request has it, and the parts of it that take time to free, the first one last."""

    whole: "ReferenceType[LoadedRelease | LoadedHeavy]"
    parts: list[object]


class Retired:
    """Any thread may retire; one at a time lets go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaving: list[_Leaving] = []

    def retire(self, before: Snapshot, after: Snapshot) -> None:
        """Hold the parts of what ``before`` has and ``after`` has not, before the one takes the other's place."""
        kept = after.loaded()
        left = [loaded for loaded in before.loaded() if not any(loaded is one for one in kept)]
        heavies = [loaded.heavy for loaded in left if not any(loaded.heavy is one.heavy for one in kept)]
        with self._lock:
            self._leaving += [_Leaving(ref(loaded), _parts(loaded)) for loaded in left]
        self.retire_heavies(heavy for heavy in heavies if heavy is not None)

    def retire_heavies(self, heavies: Iterable[LoadedHeavy]) -> None:
        """Hold the parts of heavy rankers that are about to be replaced."""
        with self._lock:
            self._leaving += [_Leaving(ref(heavy), _heavy_parts(heavy)) for heavy in heavies]

    def let_go(self) -> bool:
        """Free, part by part, what no request has any longer; whether there was any."""
        with self._lock:
            held: list[_Leaving] = []
            gone: list[_Leaving] = []
            for one in self._leaving:
                (gone if one.whole() is None else held).append(one)
            self._leaving = held
        for left in gone:
            while left.parts:
                begun = time.perf_counter()
                left.parts.pop()
                time.sleep(PAUSES * (time.perf_counter() - begun))
        return bool(gone)


def _parts(loaded: LoadedRelease) -> list[object]:
    return [loaded.index, loaded.device, loaded.live, loaded.retriever, *_graphs(loaded.tower.engines), loaded.tower]


def _heavy_parts(heavy: LoadedHeavy) -> list[object]:
    return [] if heavy.serving is None else [*_graphs(heavy.serving.engines), heavy.serving]


def _graphs(engines: Sequence[Engine]) -> list[object]:
    """Each for itself: some engines have one for every size that they prepare for."""
    return [graph for engine in engines for graph in getattr(engine, "graphs", (engine,))]
