"""The engines that can run a heavy bundle's two graphs, and the choice between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np

from contracts.bundle import PARITY_FILE, Bundle
from contracts.errors import ConfigError
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.openvino_cpu import OpenVinoEngine
from engines.parity import Run
from engines.protocol import Engine
from engines.select import GATES, Candidate, Selection, select_engine

REQUEST_GRAPH, ADS_GRAPH = "request.onnx", "ads.onnx"

EngineName = Literal["onnxruntime_cpu", "openvino_fp32", "openvino_bf16"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
EXACT_ENGINE: EngineName = "onnxruntime_cpu"
"""Serves where results must not depend on what a machine measured: fp32, and on every machine."""

TYPICAL_ADS = 100
SECONDS = 0.2

Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class EnginePair:
    """The two stages, loaded."""

    request: Engine
    ads: Engine


def load_pair(bundle: Bundle, name: str, *, threads: int) -> EnginePair:
    """Open both graphs of a bundle with one engine.

    Raises:
        ConfigError: No engine has this name.
        AdsieveError: The engine is not installed, or the machine lacks what it needs.
        ArtifactError: A graph cannot be loaded.
    """
    return EnginePair(*(_load(bundle.file(graph), name, threads) for graph in (REQUEST_GRAPH, ADS_GRAPH)))


def _load(graph: Path, name: str, threads: int) -> Engine:
    match name:
        case "onnxruntime_cpu":
            return OnnxRuntimeEngine(graph, threads=threads)
        case "openvino_fp32":
            return OpenVinoEngine(graph, threads=threads)
        case "openvino_bf16":
            return OpenVinoEngine(graph, threads=threads, precision="bf16")
    raise ConfigError(f"engine: expected auto or one of {', '.join(ENGINES)}, got {name!r}")


def fastest(bundle: Bundle, load: Callable[[EngineName], Loaded], *, run: Callable[[Loaded], Run]) -> Selection[Loaded]:
    """Of all engines that keep the bundle's parity rows on this machine, the fastest for one request of many ads.

    Args:
        bundle: With its parity rows.
        load: Makes what would serve with an engine.
        run: How what was loaded runs on the inputs among the parity tensors.

    Raises:
        ArtifactError: No engine passes.
    """
    tensors = bundle.tensors(PARITY_FILE)
    return select_engine(
        [Candidate(name=name, load=partial(load, name), gate=GATES[name]) for name in ENGINES],
        tensors,
        run=run,
        source=str(bundle.path / PARITY_FILE),
        timed_inputs=typical_call(tensors),
        seconds=SECONDS,
    )


def typical_call(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parity inputs of one request, the first, with ``TYPICAL_ADS`` ads: the saved ones, repeated where too few."""
    rows = np.arange(TYPICAL_ADS) % len(tensors["in.request_index"])
    inputs = {name: tensors[f"in.{name}"][:1] for name in ("query_ids", "query_floats")}
    per_row = [name for side in ("ad", "pair") for name in (f"{side}_ids", f"{side}_floats") if f"in.{name}" in tensors]
    inputs |= {name: tensors[f"in.{name}"][rows] for name in per_row}
    return inputs | {"request_index": np.zeros(TYPICAL_ADS, np.int64)}
