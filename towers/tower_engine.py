"""Opens one tower of a two-tower bundle with an engine, for the calls of requests or of a catalogue.

Shapes: R requests, A ads, H heads, D width of a head's vector.
"""

from pathlib import Path

import numpy as np

from contracts.bundle import Bundle
from contracts.probability import sigmoid
from engines.gpu import Gpu
from engines.names import plans_directory, program_path, unknown_engine
from engines.onnxruntime_cpu import OnnxRuntimeEngine, onnx_specs
from engines.openvino_cpu import OpenVinoEngine, Precision
from engines.protocol import Engine


def open_tower(
    bundle: Bundle,
    graph_name: str,
    name: str,
    *,
    threads: int,
    calls: int,
    rows: int,
    gpu_rows: tuple[int, ...],
    gpu: Gpu | None = None,
) -> Engine:
    """Open one graph of a bundle with one engine.

    Args:
        graph_name: Of the tower's graph in the bundle.
        name: Of the engine.
        threads: Threads of all calls that run at once.
        calls: So many run at once, on as many of the threads each.
        rows: Of most calls: OpenVINO compiles the graph once more for them.
        gpu_rows: Numbers of rows that an engine for a GPU prepares.
        gpu: What it runs on; the first one and no limit unless given.

    Raises:
        ConfigError: No engine has this name.
        AdsieveError: The engine is not installed, or the machine lacks what it needs.
        ArtifactError: The graph cannot be loaded.
    """
    graph = bundle.file(graph_name)
    match name:
        case "onnxruntime_cpu":
            return OnnxRuntimeEngine(graph, threads=threads // calls)
        case "openvino_fp32" | "openvino_bf16":
            precision: Precision = "bf16" if name == "openvino_bf16" else "fp32"
            buckets = _sizes(graph, (rows,))
            return OpenVinoEngine(graph, threads=threads, precision=precision, streams=calls, buckets=buckets)
        case "torch_cuda" | "tensorrt":
            return _open_on_gpu(bundle, graph, name, gpu_rows, gpu)
    raise unknown_engine(name)


def pair_probabilities(query: np.ndarray, pins: np.ndarray) -> np.ndarray:
    """Probabilities of each request with each ad: [R, H, D+2] and [A, H, D+2] to float32 [R * A, H]."""
    logits = np.einsum("rhd,ahd->rah", query, pins, optimize=True)
    return sigmoid(logits.reshape(-1, logits.shape[2]))


def _sizes(graph: Path, rows: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Numbers of rows by the name that the graph gives to them."""
    inputs, _ = onnx_specs(graph)
    return {size: rows for spec in inputs for size in spec.axes.values()}


def _open_on_gpu(bundle: Bundle, graph: Path, name: str, rows: tuple[int, ...], gpu: Gpu | None) -> Engine:
    """Not yet run on a GPU. A bundle without the tower's torch program has no ``torch_cuda``."""
    buckets, splits = _sizes(graph, rows), tuple(_sizes(graph, rows))
    if name == "torch_cuda":
        from engines.torch_cuda import open_torch_cuda

        return open_torch_cuda(program_path(graph), buckets=buckets, splits=splits, gpu=gpu)
    from engines.tensorrt_gpu import open_tensorrt

    plans = plans_directory(bundle.manifest.version)
    return open_tensorrt(graph, buckets=buckets, cache=plans, splits=splits, gpu=gpu)
