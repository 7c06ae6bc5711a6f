"""What serves on a GPU gives what the CPU gives: resident vectors, query tower, heavy ranker. Written without one."""

import gc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.heavy_serving_setup import rows, score, set_up
from contracts.probability import sigmoid
from engines.device_memory import DeviceMemory, DeviceMemoryError
from engines.gpu import Gpu
from engines.names import program_path
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.parity import BF16_GATE
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
from towers.serving import quantise_vectors
from towers.serving import score as score_logits
from towers.tower_engine import pair_probabilities

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

HEADS, DIM, ADS = 2, 32, 20_000
ENGINES = ["torch_cuda", "tensorrt"]


def arrays(precision):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(ADS, HEADS * DIM)).astype(np.float32)
    bias = rng.normal(size=(ADS, HEADS)).astype(np.float32)
    if precision == "int8":
        return *quantise_vectors(vectors, HEADS), bias
    return vectors.astype(precision), None, bias


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_the_best_and_all_logits_are_those_of_the_cpu(precision):
    vectors, scales, bias = arrays(precision)
    pins = ResidentPins(vectors, bias, scales, spare=10)
    for count in (1, 1_000, 1_025, 30_000, 100_000, 3):  # in an order in which a stale replay would show
        rng = np.random.default_rng(count)
        query = (rng.normal(size=(HEADS, DIM + 2)) / 4).astype(np.float32)
        chosen, heads = rng.integers(0, ADS, count), rng.integers(0, HEADS + 1, count)
        bids = rng.choice([0.5, 1.0, 2.0], count)  # ads that stand twice tie
        logits = score_logits(query, vectors[chosen], bias[chosen], None if scales is None else scales[chosen])
        found = pins.logits(chosen, query)
        np.testing.assert_allclose(found, logits, rtol=1e-5, atol=1e-5)
        chances = np.column_stack([sigmoid(found), np.ones(count)])
        utilities = bids * chances[np.arange(count), heads]
        for k in (1, 100, 700):
            best = pins.best(chosen, heads, bids, query, k=k)
            order = np.argsort(-utilities, kind="stable")[:k]
            np.testing.assert_allclose(best.utilities, utilities[order], rtol=1e-12)
            np.testing.assert_array_equal(best.positions, order)


def test_threads_and_rows_that_come_meanwhile():
    vectors, _, bias = arrays("float16")
    pins = ResidentPins(vectors[:-100], bias[:-100], None, spare=100)
    query = np.random.default_rng(1).normal(size=(HEADS, DIM + 2)).astype(np.float32)

    def ask(seed):
        if seed % 10 == 0:
            first = ADS - 100 + seed
            pins.append(vectors[first : first + 10], bias[first : first + 10], None)
        chosen = np.random.default_rng(seed).integers(0, ADS - 100, 500)
        return pins.logits(chosen, query), score_logits(query, vectors[chosen], bias[chosen])

    with ThreadPoolExecutor(8) as pool:
        for found, wanted in pool.map(ask, range(100)):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert pins.room == 0


def test_the_budget_covers_what_torch_takes_and_goes_back():
    vectors, scales, bias = arrays("float32")
    gc.collect()
    torch.cuda.empty_cache()
    before, memory = torch.cuda.memory_allocated(), DeviceMemory(2 << 30)
    pins = ResidentPins(vectors, bias, scales, gpu=Gpu(memory=memory))
    assert torch.cuda.memory_allocated() - before <= memory.used_bytes
    with pytest.raises(DeviceMemoryError):
        ResidentPins(vectors, bias, scales, gpu=Gpu(memory=DeviceMemory(1 << 20)))
    del pins
    assert memory.used_bytes == 0
    assert torch.cuda.memory_allocated() - before < 1 << 20


@pytest.fixture(scope="module")
def tower(tmp_path_factory):
    """A query tower as a graph and as a program."""
    torch.manual_seed(0)
    graph = tmp_path_factory.mktemp("tower") / "query_tower.onnx"
    write_tower(build_tower(standard().query, 300, HEADS, DIM, "query").eval(), torch.randn(4, 300), graph)
    return graph


@pytest.mark.parametrize("name", ENGINES)
def test_the_query_tower_keeps_its_gate(tower, tmp_path, name):
    if name == "tensorrt":
        pytest.importorskip("tensorrt")
        engine = open_tensorrt(tower, buckets={"rows": GPU_ROWS}, cache=tmp_path, splits=("rows",))
    else:
        engine = open_torch_cuda(program_path(tower), buckets={"rows": GPU_ROWS}, splits=("rows",))
    exact = OnnxRuntimeEngine(tower, threads=1)
    pins = np.random.default_rng(2).normal(size=(50, HEADS, DIM + 2)).astype(np.float32) / 4
    for count in (64, 1, 3, 16, 150):
        flat = {"flat": np.random.default_rng(count).normal(size=(count, 300)).astype(np.float32)}
        found, wanted = (pair_probabilities(one.run(flat)["embedding"], pins) for one in (engine, exact))
        assert np.abs(found - wanted).max() <= BF16_GATE.tolerance


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    return set_up(tmp_path_factory.mktemp("heavy"), model=small().model)


@pytest.mark.parametrize("name", ENGINES)
def test_the_heavy_ranker_scores_alike_at_every_length(ranker, name):
    if name == "tensorrt":
        pytest.importorskip("tensorrt")
    bundle = SimpleNamespace(schema=ranker.schema, manifest=SimpleNamespace(version="test", dims={VARIABLE_LENGTHS: 1}))
    graphs = [ranker.directory / graph for graph in (REQUEST_GRAPH, ADS_GRAPH)]
    pairs = [
        [OnnxRuntimeEngine(graph, threads=1) for graph in graphs],
        [open_on_gpu(bundle, g, name, precision="fp32") for g in graphs],
    ]
    exact, served = (
        HeavyServing(ranker.schema, ranker.tables, request_engine=pair[0], ads_engine=pair[1], length_buckets=lengths)
        for pair, lengths in zip(pairs, ((), gpu_lengths(bundle)), strict=True)
    )
    for requests, ads, events in [(1, 100, 50), (1, 500, 3), (4, 64, 20), (6, 30, 0), (1, 1_500, 50)]:
        given = rows(ranker, requests=requests, ads=ads, events=events or None)
        found, wanted = (sigmoid(score(one, given)) for one in (served, exact))
        assert np.abs(found - wanted).max() <= 1e-4  # fp32: random weights are not what the gate of BF16 is for
