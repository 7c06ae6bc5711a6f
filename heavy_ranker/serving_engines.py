"""The engines that can run a heavy bundle's two graphs, and the choice between them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np

from contracts.bundle import PARITY_FILE, Bundle
from contracts.errors import ConfigError
from engines.onnxruntime_cpu import OnnxRuntimeEngine, onnx_specs
from engines.openvino_cpu import OpenVinoEngine
from engines.parity import Run
from engines.protocol import Engine
from engines.select import GATES, Candidate, Selection, select_engine

REQUEST_GRAPH, ADS_GRAPH = "request.onnx", "ads.onnx"
LENGTH_SUFFIX = "_length"
"""The graphs call the length of a sequence ``<sequence>_length``."""

EngineName = Literal["onnxruntime_cpu", "openvino_fp32", "openvino_bf16", "torch_cuda", "tensorrt"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
EXACT_ENGINE: EngineName = "onnxruntime_cpu"
"""Serves where results must not depend on what a machine measured: fp32, and on every machine."""
GPU_ENGINES: tuple[EngineName, ...] = ("torch_cuda", "tensorrt")

GPU_BUCKETS = {"requests": (1, 4), "ads": (64, 128, 256, 512, 1024)}
"""Shapes that a GPU engine prepares when it is loaded; each sequence has its full length there."""
NVIDIA_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One exists where a process can reach an NVIDIA GPU; asking torch would cost seconds on every other machine."""

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
    graphs = (bundle.file(graph) for graph in (REQUEST_GRAPH, ADS_GRAPH))
    if name not in ENGINES:
        raise ConfigError(f"engine: expected auto or one of {', '.join(ENGINES)}, got {name!r}")
    if name in GPU_ENGINES:
        return EnginePair(*(_open_on_gpu(bundle, graph, name) for graph in graphs))
    return EnginePair(*(_open_on_cpu(graph, name, threads) for graph in graphs))


def _open_on_cpu(graph: Path, name: str, threads: int) -> Engine:
    match name:
        case "openvino_fp32":
            return OpenVinoEngine(graph, threads=threads)
        case "openvino_bf16":
            return OpenVinoEngine(graph, threads=threads, precision="bf16")
    return OnnxRuntimeEngine(graph, threads=threads)


def _open_on_gpu(bundle: Bundle, graph: Path, name: str) -> Engine:
    """Not yet run on a GPU. Lengths are never padded here: the ads' graph could attend to padding."""
    specs, _ = onnx_specs(graph)
    sizes = {size for spec in specs for size in spec.axes.values()}
    buckets = {size: GPU_BUCKETS.get(size) or (_length(bundle, size),) for size in sorted(sizes)}
    if name == "torch_cuda":
        from engines.torch_cuda import open_torch_cuda

        return open_torch_cuda(program_path(graph), buckets=buckets)
    from engines.tensorrt_gpu import open_tensorrt

    return open_tensorrt(graph, buckets=buckets, cache=_plans(bundle))


def _length(bundle: Bundle, size: str) -> int:
    """The length of a sequence, from the name that the graph gives to it."""
    return bundle.schema.side_features("query")[size.removesuffix(LENGTH_SUFFIX)].max_length or 1


def _plans(bundle: Bundle) -> Path:
    """Where TensorRT's plans are kept: beside the user's other caches, since a bundle is sealed."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "adsieve" / "plans" / bundle.manifest.version


def program_path(graph: Path) -> Path:
    """Where the torch program of an ONNX graph lies: beside it.

    Example:
        >>> program_path(Path("ads.onnx")).name
        'ads.program.safetensors'
    """
    return graph.with_suffix(".program.safetensors")


def candidates() -> tuple[EngineName, ...]:
    """The engines worth trying on this machine."""
    has_gpu = any(device.exists() for device in NVIDIA_DEVICES)
    return tuple(name for name in ENGINES if has_gpu or name not in GPU_ENGINES)


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
        [Candidate(name=name, load=partial(load, name), gate=GATES[name]) for name in candidates()],
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
