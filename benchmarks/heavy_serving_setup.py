"""What ``benchmarks.heavy_serving`` measures: a ranker of ``iqiyi()`` sizes, its graphs, engines, rows and products.

Weights are random, drawn so that no layer is near the identity: with the small down projections that a model starts
with, residual branches hardly count, and BF16 would be flattered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from benchmarks.iqiyi_schema import iqiyi_schema
from contracts.encoding import Encoded
from contracts.layout import SideLayout, side_layout
from contracts.schema import FeatureSchema
from engines.openvino_cpu import OpenVinoEngine
from heavy_ranker.build import build_ranker
from heavy_ranker.config import ModelConfig
from heavy_ranker.export_graphs import export_graphs
from heavy_ranker.presets import iqiyi
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.serving import LENGTH_BUCKETS, HeavyServing
from heavy_ranker.serving_engines import ADS_GRAPH, REQUEST_GRAPH, open_on_cpu, prepared_sizes
from modeling.lookups import SideInputs

GEMM = 1024
GEMM_FLOPS = 2 * GEMM**3


@dataclass(frozen=True)
class Rows:
    """Encoded rows of R requests, and the request of each row."""

    query: Encoded
    ad: Encoded
    pair: Encoded
    request_index: np.ndarray

    def of_request(self, request: int) -> "Rows":
        at = np.flatnonzero(self.request_index == request)
        index = np.zeros(len(at), np.int64)
        return Rows(self.query.take(np.array([request])), self.ad.take(at), self.pair.take(at), index)


@dataclass(frozen=True)
class Setup:
    """What all variants share; ``directory`` holds the graphs."""

    schema: FeatureSchema
    ranker: HeavyRanker
    tables: dict[str, np.ndarray]
    layouts: dict[str, SideLayout]
    directory: Path


def set_up(directory: Path, *, schema: FeatureSchema | None = None, model: ModelConfig | None = None) -> Setup:
    """Draw weights and tables and export the graphs into ``directory``.

    Args:
        schema: With features of a pair; that of ``benchmarks.iqiyi_schema`` unless given.
        model: Sizes; those of ``iqiyi()`` unless given.
    """
    torch.manual_seed(0)
    schema = schema or iqiyi_schema()
    ranker = _scattered(build_ranker(schema, model or iqiyi().model).eval())
    layouts = {side: side_layout(schema, side) for side in ("query", "ad", "pair")}
    flat = {side: torch.zeros(2, layout.flat_dim(pool_sequences=False)) for side, layout in layouts.items()}
    sequences = {
        sequence.name: (torch.zeros(2, sequence.max_length, sequence.dim), torch.ones(2, sequence.max_length))
        for sequence in layouts["query"].sequences
    }
    query = SideInputs(flat["query"], sequences)
    export_graphs(ranker, query, flat["ad"], flat["pair"], directory, variable_lengths=True)
    return Setup(schema, ranker, _tables(schema), layouts, directory)


def _scattered(ranker: HeavyRanker) -> HeavyRanker:
    with torch.no_grad():
        for name, parameter in ranker.named_parameters():
            if name.endswith("gain"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("down") and parameter.dim() == 3:
                parameter.mul_(100.0)
            elif name.endswith("bias"):
                parameter.uniform_(-0.1, 0.1)
    return ranker


def _tables(schema: FeatureSchema) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tables = {}
    for name, table in schema.all_tables().items():
        values = rng.uniform(-1, 1, (table.num_rows, table.dim)).astype(np.float32)
        values[0] = 0
        tables[f"tables.{name}"] = values
    return tables


def rows(setup: Setup, *, requests: int, ads: int, events: int | None = None) -> Rows:
    """Random ids and floats; histories of ``events`` events, or full ones."""
    rng = np.random.default_rng(requests * 1000 + ads)
    encoded = {
        side: _encoded(setup, side, requests if side == "query" else requests * ads, rng) for side in setup.layouts
    }
    for sequence in setup.layouts["query"].sequences:
        for field in sequence.fields:
            encoded["query"].ids[:, field.start + (events or field.width) : field.start + field.width] = 0
    return Rows(encoded["query"], encoded["ad"], encoded["pair"], np.repeat(np.arange(requests), ads))


def _encoded(setup: Setup, side: str, count: int, rng: np.random.Generator) -> Encoded:
    layout = setup.layouts[side]
    ids = np.empty((count, layout.num_ids), np.int32)
    for column in (*layout.bags, *(field for sequence in layout.sequences for field in sequence.fields)):
        limit = len(setup.tables[f"tables.{column.table}"])
        ids[:, column.start : column.start + column.width] = rng.integers(1, limit, (count, column.width))
    return Encoded(ids, rng.normal(size=(count, layout.num_floats)).astype(np.float32))


def serving(
    setup: Setup,
    engine: str,
    *,
    threads: int,
    tables: dict[str, np.ndarray] | None = None,
    prepared: Sequence[int] = (),
) -> HeavyServing:
    """Both graphs by one engine, as a service loads them for requests with ``prepared`` numbers of ads."""
    graphs = setup.directory / REQUEST_GRAPH, setup.directory / ADS_GRAPH
    sizes = prepared_sizes(setup.schema, prepared)
    pair = open_on_cpu(*graphs, name=engine, threads=threads, prepared=sizes)
    return HeavyServing(
        setup.schema,
        setup.tables if tables is None else tables,
        request_engine=pair.request,
        ads_engine=pair.ads,
        length_buckets=() if prepared else LENGTH_BUCKETS,
        prepared=prepared,
    )


def score(served: HeavyServing, given: Rows) -> np.ndarray:
    """Logits, from ids and floats: look-ups, request stage and ads' stage."""
    return served.score(served.encode_request(given.query), given.ad, given.pair, given.request_index)


def bf16_products(directory: Path, *, threads: int) -> dict[str, Callable[[], Any]]:
    """One square product in BF16, by torch and by OpenVINO."""
    a, b = (torch.randn(GEMM, GEMM, dtype=torch.bfloat16) for _ in range(2))
    path = directory / "product.onnx"
    shape = [GEMM, GEMM]
    weight = helper.make_tensor("b", TensorProto.FLOAT, shape, b.float().numpy().tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, shape)],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    engine, inputs = OpenVinoEngine(path, threads=threads, precision="bf16"), {"a": a.float().numpy()}
    return {"torch": lambda: torch.mm(a, b), "openvino": lambda: engine.run(inputs)}
