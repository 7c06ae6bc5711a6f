"""Bundles with real ONNX graphs of random weights: small enough to check by hand, whole enough to serve."""

import math
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from contracts.bundle import Bundle, seal_bundle
from contracts.encoding import Encoded, Encoder
from contracts.schema import Feature, FeatureSchema, SequenceField, Table
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from heavy_ranker.serving import HeavyServing
from towers.serving import TwoTowerServing

HEAD_DIM, USER_DIM = 4, 6
WATERMARK = "2026-02-28T00:00:00+00:00"
TASKS = ("click", "conversion")


def make_schema(*, heavy: bool) -> FeatureSchema:
    """What the towers read, and for the heavy ranker pair features and one more query feature."""
    features = {
        "country": Feature(side="query", kind="categorical", table="country"),
        "user_ctr": Feature(side="query", kind="dense", default=0.5),
        "watch": Feature(
            side="query",
            kind="sequence",
            max_length=4,
            fields={
                "ad": SequenceField(kind="categorical", table="ad"),
                "time": SequenceField(kind="age", buckets=8, dim=2),
            },
        ),
        "ad_key": Feature(side="ad", kind="categorical", table="ad"),
        "tags": Feature(side="ad", kind="multi_categorical", table="tag", max_length=2),
        "price": Feature(side="ad", kind="dense", transform="log1p", default=1.0),
    }
    if heavy:
        features["device"] = Feature(side="query", kind="categorical", table="country")
        features["affinity"] = Feature(side="pair", kind="dense", default=0.0)
    return FeatureSchema(
        tasks=TASKS,
        objectives={"impression": None, "click": "click", "conversion": "conversion"},
        tables={
            "country": Table(dim=3, vocabulary=("DE", "FR", "日本")),
            "ad": Table(dim=4, buckets=64),
            "tag": Table(dim=2, buckets=16),
        },
        features=features,
    )


def random_tables(schema: FeatureSchema, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        f"tables.{name}": rng.normal(size=(table.num_rows, table.dim)).astype(np.float32)
        for name, table in schema.all_tables().items()
    }


def save_graph(path: Path, nodes: list, inputs: dict, outputs: dict, weights: dict[str, np.ndarray]) -> None:
    """Write an ONNX graph of float32; inputs and outputs map names to shapes."""

    def info(name: str, shape: list) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        path.stem,
        [info(*item) for item in inputs.items()],
        [info(*item) for item in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    onnx.save(model, path)


def save_tower(path: Path, flat_dim: int, constant: int, rng: np.random.Generator) -> None:
    """A linear tower to [B, H, D+2] whose dimension ``constant`` is 1: the dot product adds the other side's bias."""
    width = HEAD_DIM + 2
    weight = rng.normal(size=(flat_dim, len(TASKS), width)).astype(np.float32) / math.sqrt(flat_dim)
    bias = rng.normal(size=(len(TASKS), width)).astype(np.float32) * 0.1
    weight[:, :, constant], bias[:, constant] = 0, 1
    nodes = [
        helper.make_node("MatMul", ["flat", "weight"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Reshape", ["sum", "shape"], ["embedding"]),
    ]
    weights = {
        "weight": weight.reshape(flat_dim, -1),
        "bias": bias.reshape(-1),
        "shape": np.array([-1, len(TASKS), width]),
    }
    save_graph(path, nodes, {"flat": ["B", flat_dim]}, {"embedding": ["B", len(TASKS), width]}, weights)


def save_heavy_graphs(directory: Path, encoders: dict[str, Encoder], rng: np.random.Generator) -> None:
    """logits = (user[request] * ad) task_weight + pair pair_weight + number of events * event_weight.

    user is linear in the flat input and in the sum of the watched ads.
    """
    dims = {side: encoder.layout.flat_dim(False) for side, encoder in encoders.items()}
    sequence = encoders["query"].layout.sequences[0]

    def weight(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32) / math.sqrt(shape[0])

    save_graph(
        directory / "request.onnx",
        [
            helper.make_node("MatMul", ["flat", "user_weight"], ["from_flat"]),
            helper.make_node("Unsqueeze", ["watch.mask", "last"], ["mask"]),
            helper.make_node("Mul", ["watch.embeddings", "mask"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "events"], ["pooled"], keepdims=0),
            helper.make_node("MatMul", ["pooled", "watch_weight"], ["from_watch"]),
            helper.make_node("Add", ["from_flat", "from_watch"], ["user"]),
            helper.make_node("ReduceSum", ["watch.mask", "events"], ["counts"], keepdims=1),
        ],
        {
            "flat": ["requests", dims["query"]],
            "watch.embeddings": ["requests", sequence.max_length, sequence.dim],
            "watch.mask": ["requests", sequence.max_length],
        },
        {"user": ["requests", USER_DIM], "counts": ["requests", 1]},
        {
            "user_weight": weight(dims["query"], USER_DIM),
            "watch_weight": weight(sequence.dim, USER_DIM),
            "last": np.array([2]),
            "events": np.array([1]),
        },
    )
    save_graph(
        directory / "ads.onnx",
        [
            helper.make_node("Unsqueeze", ["user", "events"], ["users"]),
            helper.make_node("MatMul", ["ad_flat", "ad_weight"], ["ads"]),
            helper.make_node("Mul", ["users", "ads"], ["crossed"]),
            helper.make_node("MatMul", ["crossed", "task_weight"], ["from_cross"]),
            helper.make_node("MatMul", ["pair_flat", "pair_weight"], ["from_pair"]),
            helper.make_node("Unsqueeze", ["counts", "events"], ["num_events"]),
            helper.make_node("MatMul", ["num_events", "event_weight"], ["from_events"]),
            helper.make_node("Sum", ["from_cross", "from_pair", "from_events"], ["logits"]),
        ],
        {
            "user": ["requests", USER_DIM],
            "counts": ["requests", 1],
            "ad_flat": ["requests", "ads", dims["ad"]],
            "pair_flat": ["requests", "ads", dims["pair"]],
        },
        {"logits": ["requests", "ads", len(TASKS)]},
        {
            "ad_weight": weight(dims["ad"], USER_DIM),
            "task_weight": weight(USER_DIM, len(TASKS)),
            "pair_weight": weight(dims["pair"], len(TASKS)),
            "event_weight": weight(1, len(TASKS)),
            "events": np.array([1]),
        },
    )


def random_encoded(encoder: Encoder, rows: int, rng: np.random.Generator) -> Encoded:
    layout = encoder.layout
    ids = rng.integers(1, 6, (rows, layout.num_ids)).astype(np.int32)
    return Encoded(ids, rng.normal(size=(rows, layout.num_floats)).astype(np.float32))


def parity_inputs(encoders: dict[str, Encoder], rng: np.random.Generator) -> dict[str, np.ndarray]:
    tensors = {}
    for side, encoder in encoders.items():
        encoded = random_encoded(encoder, 5, rng)
        tensors |= {f"in.{side}_ids": encoded.ids, f"in.{side}_floats": encoded.floats}
    return tensors


def seal_two_tower(
    target: Path, scenario: str, seed: int, requests: list[dict], schema: FeatureSchema | None = None
) -> Bundle:
    """A two-tower bundle, by default of ``make_schema``."""
    schema, rng = schema or make_schema(heavy=False), np.random.default_rng(seed)
    tables = random_tables(schema, rng)
    encoders = {side: Encoder(schema, side) for side in ("query", "ad")}

    def fill(directory: Path) -> None:
        save_file(tables, directory / "weights.safetensors")
        save_tower(directory / "query_tower.onnx", encoders["query"].layout.flat_dim(True), HEAD_DIM, rng)
        save_tower(directory / "pin_tower.onnx", encoders["ad"].layout.flat_dim(True), HEAD_DIM + 1, rng)
        engines = {
            f"{name}_engine": OnnxRuntimeEngine(directory / f"{name}_tower.onnx", threads=1)
            for name in ("query", "pin")
        }
        serving = TwoTowerServing(schema, tables, **engines)
        tensors = parity_inputs(encoders, rng)
        tensors["out.query_embedding"] = serving.embed_query(
            Encoded(tensors["in.query_ids"], tensors["in.query_floats"])
        )
        tensors["out.pin_embedding"] = serving.embed_ads(Encoded(tensors["in.ad_ids"], tensors["in.ad_floats"]))
        save_file(tensors, directory / "parity.safetensors")
        (directory / "requests.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, requests)) + b"\n")

    return seal_bundle(
        target,
        kind="two_tower",
        scenario=scenario,
        schema=schema,
        config={},
        dims={"head_dim": HEAD_DIM},
        watermark=WATERMARK,
        fill=fill,
    )


def seal_heavy(target: Path, seed: int, schema: FeatureSchema | None = None) -> Bundle:
    """A heavy bundle of no scenario, by default of ``make_schema``."""
    schema, rng = schema or make_schema(heavy=True), np.random.default_rng(seed)
    tables = random_tables(schema, rng)
    encoders = {side: Encoder(schema, side) for side in ("query", "ad", "pair")}

    def fill(directory: Path) -> None:
        save_file(tables, directory / "weights.safetensors")
        save_heavy_graphs(directory, encoders, rng)
        engines = {
            f"{name}_engine": OnnxRuntimeEngine(directory / f"{name}.onnx", threads=1) for name in ("request", "ads")
        }
        serving = HeavyServing(schema, tables, **engines)
        tensors = parity_inputs(encoders, rng)
        query, ad, pair = (
            Encoded(tensors[f"in.{side}_ids"], tensors[f"in.{side}_floats"]) for side in ("query", "ad", "pair")
        )
        tensors["in.request_index"] = np.arange(5)
        logits = serving.score(serving.encode_request(query), ad, pair, tensors["in.request_index"])
        tensors["out.probabilities"] = (1 / (1 + np.exp(-logits))).astype(np.float32)
        save_file(tensors, directory / "parity.safetensors")

    return seal_bundle(
        target,
        kind="heavy",
        scenario=None,
        schema=schema,
        config={},
        dims={},
        watermark=WATERMARK,
        fill=fill,
    )
