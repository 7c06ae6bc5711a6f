"""What serves, on a GPU beside the CPU of the same machine: query tower, light stage, heavy ranker. Random weights.

Query: a ``standard()`` tower, 1 to 64 requests a call. Light: a million ads of two heads in fp16, gathered, scored and
sorted out for 1,000 to 100,000 candidates. Heavy: a ranker of ``iqiyi()`` sizes, one request with 100 and 500
survivors. Engines: ONNX Runtime on the CPU, ``torch_cuda``, and TensorRT where asked. Beside times stands how far each
is from ONNX Runtime, in probabilities.

Not yet run on a GPU.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_timing import compared, described, device_fault, gpu_parser, medians_ms, refuse
from benchmarks.harness import Target, finish
from benchmarks.heavy_serving_setup import Rows, Setup, rows, score, set_up
from benchmarks.iqiyi_schema import iqiyi_schema
from contracts.errors import AdsieveError
from contracts.layout import side_layout
from contracts.probability import sigmoid
from contracts.utility import ObjectiveColumns, top_positions
from engines.gpu import Gpu
from engines.names import program_path
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.parity import BF16_GATE, FP32_GATE
from engines.protocol import Engine
from engines.resident import ResidentPins
from engines.tensorrt_gpu import open_tensorrt
from engines.torch_cuda import open_torch_cuda
from heavy_ranker.presets import small
from heavy_ranker.serving import HeavyServing
from heavy_ranker.serving_engines import ADS_GRAPH, REQUEST_GRAPH, VARIABLE_LENGTHS, gpu_lengths, open_on_gpu
from towers.build import build_tower
from towers.export import write_tower
from towers.presets import standard
from towers.query_engine import GPU_ROWS
from towers.serving import score as score_logits
from towers.tower_engine import pair_probabilities

CPU = "onnxruntime_cpu"
HEADS, HEAD_DIM, SURVIVORS = 2, 64, 100
ADS, CANDIDATES, HEAVY_ADS = 1_000_000, (1_000, 10_000, 100_000), (100, 500)
TINY_ADS, TINY_CANDIDATES, TINY_HEAVY_ADS = 5_000, (100, 1_000), (10, 40)
CHUNK = 2_048


@dataclass(frozen=True)
class On:
    """What a part is measured with."""

    directory: Path
    gpu: Gpu
    threads: int
    tensorrt: bool


def main() -> int:
    """Query, light and heavy, or one of them."""
    arguments = gpu_parser(__doc__)
    arguments.add_argument("--only", choices=("query", "light", "heavy"), help="one part alone")
    arguments.add_argument("--tensorrt", action="store_true", help="TensorRT too; building its plans takes minutes")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of ONNX Runtime")
    options = arguments.parse_args()
    fault = device_fault("benchmarks.gpu_serving", options.device)
    if fault is not None:
        return refuse(fault)
    figures: dict[str, Any] = described(options.device) | {"threads of the CPU": options.threads}
    on = On(Path(), Gpu(device=options.device), options.threads, options.tensorrt)
    targets: list[Target] = []
    with TemporaryDirectory(prefix="adsieve-gpu-") as directory:
        for name, part in (("query", query), ("light", light), ("heavy", heavy)):
            if options.only in (None, name):
                found, wanted = part(replace(on, directory=Path(directory)))
                figures |= found
                targets += wanted
    return finish(options, figures, targets)


def query(on: On) -> tuple[dict[str, Any], list[Target]]:
    """The query tower at every number of rows that a GPU engine prepares."""
    torch.manual_seed(0)
    width = side_layout(iqiyi_schema(), "query").flat_dim(pool_sequences=True)
    graph = on.directory / "query_tower.onnx"
    tower = build_tower(standard().query, width, HEADS, HEAD_DIM, "query").eval()
    write_tower(tower, torch.randn(4, width), graph)
    exact = OnnxRuntimeEngine(graph, threads=on.threads)
    engines, figures = _opened(on, graph, {"rows": GPU_ROWS})
    rng, targets = np.random.default_rng(0), []
    flat = rng.normal(size=(GPU_ROWS[-1], width)).astype(np.float32)
    pins = rng.normal(size=(64, HEADS, HEAD_DIM + 2)).astype(np.float32)
    wanted = pair_probabilities(exact.run({"flat": flat})["embedding"], pins)
    for name, engine in engines.items():
        found = pair_probabilities(engine.run({"flat": flat})["embedding"], pins)
        targets.append(_parity(f"query, {name}", found, wanted))
    for count in GPU_ROWS:
        given = {"flat": flat[:count]}
        runs = {name: partial(engine.run, given) for name, engine in ({CPU: exact} | engines).items()}
        figures |= compared(f"query, {count} rows", medians_ms(runs, on.gpu.device), baseline=CPU)
    return figures, targets


def light(on: On) -> tuple[dict[str, Any], list[Target]]:
    """Gather, scores, utilities and the best, of ads that are resident, beside NumPy."""
    num_ads, counts = (TINY_ADS, TINY_CANDIDATES) if on.gpu.device == "cpu" else (ADS, CANDIDATES)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((num_ads, HEADS * HEAD_DIM), np.float32).astype(np.float16)
    bias = rng.standard_normal((num_ads, HEADS), np.float32)
    embedding = rng.normal(size=(HEADS, HEAD_DIM + 2)).astype(np.float32) / 8
    objectives = ObjectiveColumns(
        {"click": "click", "conversion": "conversion", "impression": None}, ("click", "conversion")
    )
    resident = ResidentPins(vectors, bias, None, gpu=on.gpu)
    figures: dict[str, Any] = {"light, ads": num_ads, "light, MiB held": on.gpu.memory.used_bytes / 2**20}
    targets = []
    for count in counts:
        chosen, bids = rng.integers(0, num_ads, count), rng.lognormal(size=count)
        codes = rng.integers(0, 3, count)
        heads = objectives.heads(codes)
        here = partial(_utilities_here, embedding, vectors, bias, chosen, bids, codes, objectives)
        utilities = here()
        found = resident.best(chosen, heads, bids, embedding, k=SURVIVORS)
        error = np.abs(found.utilities / utilities[top_positions(utilities, SURVIVORS)] - 1).max()
        targets.append(Target(f"light, {count} candidates, error of utilities", float(error), at_most=1e-5))
        runs: dict[str, Callable[[], object]] = {
            "numpy": partial(_best_here, here),
            "resident": partial(resident.best, chosen, heads, bids, embedding, k=SURVIVORS),
            "resident, all logits": partial(resident.logits, chosen, embedding),
        }
        figures |= compared(f"light, {count} candidates", medians_ms(runs, on.gpu.device), baseline="numpy")
    return figures, targets


def _utilities_here(
    embedding: np.ndarray,
    vectors: np.ndarray,
    bias: np.ndarray,
    chosen: np.ndarray,
    bids: np.ndarray,
    codes: np.ndarray,
    objectives: ObjectiveColumns,
) -> np.ndarray:
    """Utilities of the chosen rows by NumPy, in chunks as a service without kernels takes them."""
    logits = np.empty((len(chosen), HEADS), np.float32)
    for start in range(0, len(chosen), CHUNK):
        at = chosen[start : start + CHUNK]
        logits[start : start + CHUNK] = score_logits(embedding, vectors.take(at, axis=0), bias.take(at, axis=0))
    return bids * objectives.probability(sigmoid(logits), codes)


def _best_here(utilities: Callable[[], np.ndarray]) -> np.ndarray:
    return top_positions(utilities(), SURVIVORS)


def heavy(on: On) -> tuple[dict[str, Any], list[Target]]:
    """One request with so many survivors: its user side once, and the ads."""
    is_tiny = on.gpu.device == "cpu"
    setup = set_up(on.directory, model=small().model if is_tiny else None)
    pairs: dict[str, tuple[Engine, ...]] = {}
    pairs[CPU] = tuple(
        OnnxRuntimeEngine(on.directory / graph, threads=on.threads) for graph in (REQUEST_GRAPH, ADS_GRAPH)
    )
    lengths = gpu_lengths(_bundle(setup))
    figures: dict[str, Any] = {"heavy, lengths of sequences beside the whole": list(lengths)}
    for name in ("torch_cuda", "tensorrt") if on.tensorrt else ("torch_cuda",):
        try:
            bundle = _bundle(setup)
            pairs[name] = tuple(
                open_on_gpu(bundle, on.directory / g, name, gpu=on.gpu) for g in (REQUEST_GRAPH, ADS_GRAPH)
            )
        except AdsieveError as error:
            figures[f"heavy, {name}"] = f"not measured: {error}"
    servings = {name: _serving(setup, pair, () if name == CPU else lengths) for name, pair in pairs.items()}
    targets = []
    for count in TINY_HEAVY_ADS if is_tiny else HEAVY_ADS:
        given: Rows = rows(setup, requests=1, ads=count)
        wanted = sigmoid(score(servings[CPU], given))
        for name in servings.keys() - {CPU}:
            targets.append(_parity(f"heavy, {count} ads, {name}", sigmoid(score(servings[name], given)), wanted))
        runs = {name: partial(score, serving, given) for name, serving in servings.items()}
        medians = medians_ms(runs, on.gpu.device)
        figures |= compared(f"heavy, {count} ads", medians, baseline=CPU)
        if not is_tiny:
            ratio = medians[CPU] / medians["torch_cuda"]
            targets.append(Target(f"heavy, {count} ads, {CPU} over torch_cuda", ratio, at_least=1.0))
    return figures, targets


def _opened(on: On, graph: Path, buckets: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Engine], dict[str, Any]]:
    """Engines of one graph on the device; and for those that cannot be had, why."""
    opens: dict[str, Callable[[], Engine]] = {
        "torch_cuda bf16": partial(open_torch_cuda, program_path(graph), buckets=buckets, gpu=on.gpu),
        "torch_cuda fp32": partial(open_torch_cuda, program_path(graph), buckets=buckets, precision="fp32", gpu=on.gpu),
    }
    if on.tensorrt:
        plans = on.directory / "plans"
        opens["tensorrt bf16"] = partial(open_tensorrt, graph, buckets=buckets, cache=plans, gpu=on.gpu)
    engines, figures = {}, {}
    for name, load in opens.items():
        try:
            engines[name] = load()
        except AdsieveError as error:
            figures[f"{graph.stem}, {name}"] = f"not measured: {error}"
    return engines, figures


def _bundle(setup: Setup) -> Any:
    """As much of a bundle as an engine on a GPU asks for."""
    manifest = SimpleNamespace(version="benchmark", dims={VARIABLE_LENGTHS: 1})
    return SimpleNamespace(schema=setup.schema, manifest=manifest)


def _serving(setup: Setup, pair: tuple[Any, ...], lengths: tuple[int, ...]) -> HeavyServing:
    request, ads = pair
    return HeavyServing(setup.schema, setup.tables, request_engine=request, ads_engine=ads, length_buckets=lengths)


def _parity(name: str, found: np.ndarray, wanted: np.ndarray) -> Target:
    gate = FP32_GATE if name.endswith("fp32") else BF16_GATE
    return Target(f"{name}, error of probabilities", float(np.abs(found - wanted).max()), at_most=gate.tolerance)


if __name__ == "__main__":
    sys.exit(main())
