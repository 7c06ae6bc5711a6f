"""Which engine runs the query tower of requests: of those that keep the bundle's parity rows, the fastest for one row.

Parity is measured on what an embedding is for: the probabilities ``sigmoid(dot)`` of the saved requests with the saved
ads. Shapes: R requests, A ads, H heads, D width of a head's vector.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from contracts.bundle import GRAPHS, PARITY_FILE, Bundle
from contracts.errors import ConfigError
from contracts.probability import sigmoid
from engines.lookup import TableLookup
from engines.onnxruntime_cpu import OnnxRuntimeEngine, onnx_specs
from engines.openvino_cpu import OpenVinoEngine, Precision
from engines.parity import Run
from engines.protocol import Engine
from engines.select import GATES, Candidate, Selection, select_engine

QueryEngineName = Literal["onnxruntime_cpu", "openvino_fp32", "openvino_bf16", "torch_cuda", "tensorrt"]
QUERY_ENGINES: tuple[QueryEngineName, ...] = get_args(QueryEngineName)
EXACT_ENGINE: QueryEngineName = "onnxruntime_cpu"
"""fp32, and on every machine."""
GPU_ENGINES: tuple[QueryEngineName, ...] = ("torch_cuda", "tensorrt")
NVIDIA_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One exists where a process can reach an NVIDIA GPU."""

QUERY_GRAPH = GRAPHS["two_tower"][0]
PREPARED_ROWS = (1,)
"""Requests of one call for which OpenVINO compiles the graph once more."""
GPU_ROWS = (1, 4, 16, 64)
SECONDS = 0.1


def open_query_engine(bundle: Bundle, name: str, *, threads: int) -> Engine:
    """Open the query tower of a bundle with one engine.

    Raises:
        ConfigError: No engine has this name.
        AdsieveError: The engine is not installed, or the machine lacks what it needs.
        ArtifactError: The graph cannot be loaded.
    """
    graph = bundle.file(QUERY_GRAPH)
    match name:
        case "onnxruntime_cpu":
            return OnnxRuntimeEngine(graph, threads=threads)
        case "openvino_fp32" | "openvino_bf16":
            precision: Precision = "bf16" if name == "openvino_bf16" else "fp32"
            return OpenVinoEngine(graph, threads=threads, precision=precision, buckets=_sizes(graph, PREPARED_ROWS))
        case "torch_cuda" | "tensorrt":
            return _open_on_gpu(bundle, graph, name)
    raise ConfigError(f"engine: expected auto or one of {', '.join(QUERY_ENGINES)}, got {name!r}")


def select_query_engine(
    bundle: Bundle, lookup: TableLookup, *, names: Sequence[str] | None = None, threads: int
) -> Selection[Engine]:
    """Try engines one after another on the parity rows, and time them on one row.

    Args:
        bundle: With parity rows of both sides.
        lookup: Of the query side.
        names: Engines to try; None is all that this machine may have.

    Raises:
        ArtifactError: None passes; the message says for each what it lacks.
    """
    has_gpu = any(device.exists() for device in NVIDIA_DEVICES)
    tried = names or [name for name in QUERY_ENGINES if has_gpu or name not in GPU_ENGINES]
    saved = bundle.tensors(PARITY_FILE)
    flat, pins = lookup(saved["in.query_ids"], saved["in.query_floats"]).flat, saved["out.pin_embedding"]
    expected = pair_probabilities(saved["out.query_embedding"], pins)
    return select_engine(
        [
            Candidate(name=name, load=partial(open_query_engine, bundle, name, threads=threads), gate=GATES[name])
            for name in tried
        ],
        {"in.flat": flat, "out.probabilities": expected},
        run=partial(_probabilities_of, pins=pins),
        source=str(bundle.file(PARITY_FILE)),
        timed_inputs={"flat": flat[:1]},
        seconds=SECONDS,
    )


def pair_probabilities(query: np.ndarray, pins: np.ndarray) -> np.ndarray:
    """Probabilities of each request with each ad: [R, H, D+2] and [A, H, D+2] to float32 [R * A, H]."""
    logits = np.einsum("rhd,ahd->rah", query, pins, optimize=True)
    return sigmoid(logits.reshape(-1, logits.shape[2]))


def _probabilities_of(engine: Engine, *, pins: np.ndarray) -> Run:
    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        query = engine.run({"flat": inputs["flat"]})["embedding"]
        return {"probabilities": pair_probabilities(query, pins)}

    return run


def _sizes(graph: Path, rows: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Numbers of rows by the name that the graph gives to them."""
    inputs, _ = onnx_specs(graph)
    return {size: rows for spec in inputs for size in spec.axes.values()}


def _open_on_gpu(bundle: Bundle, graph: Path, name: str) -> Engine:
    """Not yet run on a GPU. A bundle without the tower's torch program has no ``torch_cuda``."""
    buckets = _sizes(graph, GPU_ROWS)
    if name == "torch_cuda":
        from engines.torch_cuda import open_torch_cuda

        return open_torch_cuda(graph.with_suffix(".program.safetensors"), buckets=buckets, splits=tuple(buckets))
    from engines.tensorrt_gpu import open_tensorrt

    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    plans = Path(root) / "adsieve" / "plans" / bundle.manifest.version
    return open_tensorrt(graph, buckets=buckets, cache=plans, splits=tuple(buckets))
