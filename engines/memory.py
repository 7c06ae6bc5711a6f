"""Which engine was the fastest for a model on this machine, as an earlier process found by comparing all.

All processes of a host take the same one, since engines differ in the last bits of a score and what a busy machine
measured differs from moment to moment. It is kept beside the user's other caches for some weeks. What an engine
computes depends on the weights, and is checked by every process.

    CACHE/adsieve/engines/KEY.json      the engine's name; CACHE is $XDG_CACHE_HOME, or ~/.cache
"""

import hashlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from contracts.artifact import write_json
from contracts.caches import user_caches
from contracts.errors import AdsieveError
from contracts.locks import one_at_a_time
from engines.names import ENGINES, engines_here
from engines.select import Selection

Loaded = TypeVar("Loaded")

DAYS = 30
"""Then all are compared again: what was measured on a busy machine is not believed for ever."""
LIBRARIES = ("adsieve", "openvino", "onnxruntime", "onnxruntime-gpu", "torch", "tensorrt", "numpy")
PATIENCE_S = 60.0
"""So long a process waits for another that compares; then it compares for itself."""
_LOCK = ".lock"
_CPU_FIELDS = ("model name", "flags")
_DAY_S = 86_400


class EngineMemory:
    """What is remembered for one model.

    Args:
        about: What tells the model from others that may be faster on another engine, such as its kind and its shape;
            anything that JSON can hold.
        threads: Threads of its calls.
        directory: Where it is kept; None is :func:`cache_directory`.
    """

    def __init__(self, about: Sequence[object], *, threads: int, directory: Path | None = None) -> None:
        self.path = (directory or cache_directory()) / f"{_key(about, threads)}.json"

    def recall(self) -> str | None:
        """The engine that was the fastest, if that was found within the last weeks."""
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            if _is_recent(self.path):
                name = msgspec.json.decode(self.path.read_bytes(), type=str)
                return name if name in ENGINES else None
        return None

    def note(self, name: str) -> None:
        """Remember an engine, and forget what is too old; where that cannot be written, all are compared again."""
        with suppress(OSError):
            write_json(self.path, name)
            for path in self.path.parent.glob("*.json"):
                if not _is_recent(path):
                    path.unlink(missing_ok=True)
                    path.with_suffix(_LOCK).unlink(missing_ok=True)

    def choose(self, names: Sequence[str], select: Callable[[Sequence[str]], Selection[Loaded]]) -> Selection[Loaded]:
        """The engine that is remembered, where it is among these and passes; else the fastest, from now on remembered.

        One process of a host compares at a time, and the others take what it found. Nothing is remembered while an
        engine cannot run yet that may run later.

        Args:
            select: Compares the engines that it is given; as :func:`~engines.select.select_engine`, whose errors are
                raised.
        """
        known = self.recall()
        found = _passing(known, names, select)
        if found is not None:
            return found
        with one_at_a_time(self.path.with_suffix(_LOCK), limit_s=PATIENCE_S):
            later = self.recall()  # what another process found meanwhile
            found = None if later == known else _passing(later, names, select)
            if found is None:
                found = select(names)
                if not any(trial.is_for_now for trial in found.trials):
                    self.note(found.name)
        return found


def cache_directory() -> Path:
    """Where it is kept unless told otherwise."""
    return user_caches() / "engines"


def _passing(
    name: str | None, names: Sequence[str], select: Callable[[Sequence[str]], Selection[Loaded]]
) -> Selection[Loaded] | None:
    if name is not None and name in names:
        with suppress(AdsieveError):  # then all are compared, and the message tells of all
            return select([name])
    return None


def _is_recent(path: Path) -> bool:
    return 0 <= time.time() - path.stat().st_mtime < DAYS * _DAY_S


def _key(about: Sequence[object], threads: int) -> str:
    machine = [platform.node(), platform.machine(), _processor(), len(os.sched_getaffinity(0)), engines_here(), threads]
    libraries = [[name, _version(name)] for name in LIBRARIES]
    return hashlib.sha256(msgspec.json.encode([about, machine, libraries], order="sorted")).hexdigest()[:32]


def _processor() -> list[str]:
    """Name and features of the first processor."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
        return [line for line in lines if line.startswith(_CPU_FIELDS)]
    return [platform.processor()]


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None
