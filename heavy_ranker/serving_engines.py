"""The engines that can run a heavy bundle's two graphs, and the choice between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np

from contracts.bundle import PARITY_FILE, Bundle
from contracts.layout import side_layout
from contracts.schema import FeatureSchema
from engines.gpu import Gpu
from engines.memory import EngineMemory
from engines.names import (
    ENGINES,
    GPU_ENGINES,
    EngineName,
    engines_here,
    plans_directory,
    program_path,
    unknown_engine,
)
from engines.onnxruntime_cpu import OnnxRuntimeEngine, onnx_specs
from engines.openvino_cpu import OpenVinoEngine, Precision
from engines.parity import Run
from engines.protocol import Engine
from engines.select import GATES, Candidate, Selection, select_engine

REQUEST_GRAPH, ADS_GRAPH = "request.onnx", "ads.onnx"
LENGTH_SUFFIX = "_length"
"""The graphs call the length of a sequence ``<sequence>_length``."""

PREPARING_ENGINES: tuple[EngineName, ...] = ("openvino_fp32", "openvino_bf16")
"""Compile graphs once more for sizes that are known beforehand."""

GPU_BUCKETS = {"requests": (1, 4), "ads": (64, 128, 256, 512, 1024)}
"""Shapes that a GPU engine prepares when it is loaded."""
GPU_LENGTHS, MOST_LENGTHS = (16, 64, 256), 8
"""Lengths to which it cuts sequences, beside the whole; fewer where sequences would have more combinations of them."""
VARIABLE_LENGTHS = "variable_lengths"
"""Among a bundle's ``dims``: 1 where the request graph takes sequences cut to what their histories need."""

TYPICAL_ADS = 100
SECONDS = 0.2

Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class EnginePair:
    """The two stages, loaded; ``request`` is None where ``ads`` runs both, from the request graph's inputs on."""

    request: Engine | None
    ads: Engine


def load_pair(
    bundle: Bundle, name: str, *, threads: int, prepared: Sequence[int] = (), gpu: Gpu | None = None
) -> EnginePair:
    """Open both graphs of a bundle with one engine.

    Args:
        gpu: What an engine for a GPU runs on; the first one and no limit unless given.
        prepared: Numbers of ads of one request for which OpenVINO compiles the graphs once more, whole sequences alone.

    Raises:
        ConfigError: No engine has this name.
        AdsieveError: The engine is not installed, or the machine lacks what it needs.
        ArtifactError: A graph cannot be loaded.
    """
    graphs = bundle.file(REQUEST_GRAPH), bundle.file(ADS_GRAPH)
    if name not in ENGINES:
        raise unknown_engine(name)
    if name in GPU_ENGINES:
        return EnginePair(*(open_on_gpu(bundle, graph, name, gpu=gpu) for graph in graphs))
    return open_on_cpu(*graphs, name=name, threads=threads, prepared=prepared_sizes(bundle.schema, prepared))


def prepared_sizes(schema: FeatureSchema, ads: Sequence[int]) -> dict[str, Sequence[int]]:
    """The sizes of one request with some numbers of ads and whole sequences, by the names that the graphs give them."""
    if not ads:
        return {}
    sequences = side_layout(schema, "query").sequences
    lengths = {f"{sequence.name}{LENGTH_SUFFIX}": (sequence.max_length,) for sequence in sequences}
    return {"requests": (1,), "ads": tuple(ads), **lengths}


def open_on_cpu(
    request_graph: Path, ads_graph: Path, *, name: str, threads: int, prepared: Mapping[str, Sequence[int]]
) -> EnginePair:
    """Both graphs with one of the engines of a CPU; ``prepared`` are sizes as of :func:`prepared_sizes`.

    OpenVINO gets them as one graph and gives every thread ads of its own. Each thread then encodes the request for
    itself, in the time in which it would otherwise wait for the one that does. In fp32 the request costs more than
    that waiting: where sizes are prepared, all threads encode it together.
    """
    if name == "onnxruntime_cpu":
        return EnginePair(*(OnnxRuntimeEngine(graph, threads=threads) for graph in (request_graph, ads_graph)))
    precision: Precision = "bf16" if name == "openvino_bf16" else "fp32"
    joined = OpenVinoEngine(
        ads_graph,
        threads=threads,
        precision=precision,
        streams=threads,
        divide="ads",
        after=request_graph,
        first_once=precision == "fp32",
        buckets=prepared,
    )
    return EnginePair(None, joined)


def open_on_gpu(
    bundle: Bundle, graph: Path, name: str, *, precision: Precision = "bf16", gpu: Gpu | None = None
) -> Engine:
    """One graph with an engine for a GPU; calls above the largest bucket run in pieces. Not yet run on a GPU.

    Lengths are never padded here, since the ads' graph could attend to padding: the look-up cuts sequences to one of
    :func:`gpu_lengths` and masks what is left of it.
    """
    lengths = gpu_lengths(bundle)
    specs, _ = onnx_specs(graph)
    sizes = {size for spec in specs for size in spec.axes.values()}
    buckets = {size: GPU_BUCKETS.get(size) or _below(lengths, _length(bundle, size)) for size in sorted(sizes)}
    splits = tuple(GPU_BUCKETS)
    if name == "torch_cuda":
        from engines.torch_cuda import open_torch_cuda

        program = program_path(graph)
        return open_torch_cuda(program, buckets=buckets, splits=splits, precision=precision, gpu=gpu)
    from engines.tensorrt_gpu import open_tensorrt

    plans = plans_directory(bundle.manifest.version)
    return open_tensorrt(graph, buckets=buckets, cache=plans, splits=splits, precision=precision, gpu=gpu)


def gpu_lengths(bundle: Bundle) -> tuple[int, ...]:
    """Lengths, beside the whole, to which an engine for a GPU takes sequences cut; none where a bundle has them whole.

    Every combination of the sequences' lengths is a shape of its own, at most ``MOST_LENGTHS`` of them: where there are
    more, the shortest lengths are left out.
    """
    if not bundle.manifest.dims.get(VARIABLE_LENGTHS):
        return ()
    whole = [sequence.max_length for sequence in side_layout(bundle.schema, "query").sequences]
    lengths: tuple[int, ...] = GPU_LENGTHS
    while prod(len(_below(lengths, most)) for most in whole) > MOST_LENGTHS:
        lengths = lengths[1:]
    return lengths


def _below(lengths: Sequence[int], whole: int) -> tuple[int, ...]:
    return (*(length for length in lengths if length < whole), whole)


def _length(bundle: Bundle, size: str) -> int:
    """The length of a sequence, from the name that the graph gives to it."""
    return bundle.schema.side_features("query")[size.removesuffix(LENGTH_SUFFIX)].max_length or 1


def fastest(
    bundle: Bundle,
    load: Callable[[str], Loaded],
    *,
    run: Callable[[Loaded], Run],
    memory: EngineMemory | None = None,
) -> Selection[Loaded]:
    """Of all engines that keep the bundle's parity rows on this machine, the fastest for one request of many ads.

    Args:
        bundle: With its parity rows.
        load: Makes what would serve with an engine.
        run: How what was loaded runs on the inputs among the parity tensors.
        memory: Of what was found before, which is then taken where it keeps the parity rows.

    Raises:
        ArtifactError: No engine passes.
    """
    tensors = bundle.tensors(PARITY_FILE)

    def select(names: Sequence[str]) -> Selection[Loaded]:
        return select_engine(
            [Candidate(name=name, load=partial(load, name), gate=GATES[name]) for name in names],
            tensors,
            run=run,
            source=str(bundle.path / PARITY_FILE),
            timed_inputs=typical_call(tensors),
            seconds=SECONDS,
        )

    return select(engines_here()) if memory is None else memory.choose(engines_here(), select)


def typical_call(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parity inputs of one request, the first, with ``TYPICAL_ADS`` ads: the saved ones, repeated where too few."""
    rows = np.arange(TYPICAL_ADS) % len(tensors["in.request_index"])
    inputs = {name: tensors[f"in.{name}"][:1] for name in ("query_ids", "query_floats")}
    per_row = [name for side in ("ad", "pair") for name in (f"{side}_ids", f"{side}_floats") if f"in.{name}" in tensors]
    inputs |= {name: tensors[f"in.{name}"][rows] for name in per_row}
    return inputs | {"request_index": np.zeros(TYPICAL_ADS, np.int64)}
