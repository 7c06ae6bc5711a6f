"""Which engine was the fastest for pin towers of one shape on this machine, as an earlier build found by comparing all.

A nightly job builds with the same tower, trained anew. Which engine is fastest depends on the graph's shape, the
machine and the libraries, not on the weights: so it is compared once for each of these and remembered beside the user's
other caches for some weeks. What an engine computes does depend on the weights, and is checked in every build.

    CACHE/adsieve/pin-engines/KEY.json      the engine's name; CACHE is $XDG_CACHE_HOME, or ~/.cache
"""

import hashlib
import importlib.metadata
import os
import platform
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from contracts.artifact import write_json
from contracts.bundle import Bundle
from contracts.layout import side_layout
from engines.names import ENGINES, engines_here

DAYS = 30
"""Then all are compared again: what was measured on a busy machine is not believed for ever."""
LIBRARIES = ("openvino", "onnxruntime", "onnxruntime-gpu", "torch", "tensorrt", "numpy")
_CPU_FIELDS = ("model name", "flags")
_DAY_S = 86_400


class EngineMemory:
    """What is remembered for the pin tower of a bundle.

    Args:
        bundle: Of the tower.
        threads: Calls that run at once.
    """

    def __init__(self, bundle: Bundle, *, threads: int) -> None:
        self.path = cache_directory() / f"{_key(bundle, threads)}.json"

    def recall(self) -> str | None:
        """The engine that was the fastest, if that was found within the last weeks."""
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            if 0 <= time.time() - self.path.stat().st_mtime < DAYS * _DAY_S:
                name = msgspec.json.decode(self.path.read_bytes(), type=str)
                return name if name in ENGINES else None
        return None

    def note(self, name: str) -> None:
        """Remember an engine; where that cannot be written, the next build compares again."""
        with suppress(OSError):
            write_json(self.path, name)


def cache_directory() -> Path:
    """Where it is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adsieve" / "pin-engines"


def _key(bundle: Bundle, threads: int) -> str:
    shape = [side_layout(bundle.schema, "ad").flat_dim(pool_sequences=True), bundle.manifest.dims, bundle.config]
    machine = [platform.node(), platform.machine(), _processor(), len(os.sched_getaffinity(0)), engines_here(), threads]
    libraries = [[name, _version(name)] for name in LIBRARIES]
    return hashlib.sha256(msgspec.json.encode([shape, machine, libraries], order="sorted")).hexdigest()[:32]


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
