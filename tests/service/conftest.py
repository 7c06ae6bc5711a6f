"""A tiny true store: two scenarios, real bundles with ONNX graphs, real indexes, real releases."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from contracts.bundle import Bundle, seal_bundle
from contracts.encoding import Encoded, Encoder
from contracts.release import Release
from contracts.schema import Feature, FeatureSchema, SequenceField, Table
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from heavy_ranker.serving import HeavyServing
from indexing.config import IndexConfig
from indexing.live import LiveIndex
from indexing.nightly import build_index
from indexing.store import DirectoryStore
from service.releases import Snapshot, load_snapshot
from service.settings import Settings
from towers.serving import TwoTowerServing

HEAD_DIM, USER_DIM = 4, 6
SCENARIOS = ("shopping", "standard")
NUM_ADS = {"shopping": 40, "standard": 3_000}
EVENT_TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)
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


def seal_two_tower(target: Path, scenario: str, seed: int, requests: list[dict]) -> Bundle:
    schema, rng = make_schema(heavy=False), np.random.default_rng(seed)
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


def seal_heavy(target: Path, seed: int) -> Bundle:
    schema, rng = make_schema(heavy=True), np.random.default_rng(seed)
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


def make_ads(scenario: str, rng: np.random.Generator) -> pa.Table:
    """Ads with every peculiarity: paused, no bid, no objective, missing features, ids beyond ASCII."""
    count = NUM_ADS[scenario]
    ids = [f"{scenario}-{i}" if i % 7 else f"{scenario}-ü広告-{i}" for i in range(count)]
    return pa.table(
        {
            "ad_id": ids,
            "valid_from": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
            "scenario": [scenario] * count,
            "status": ["paused" if i % 11 == 3 else "active" for i in range(count)],
            "advertiser_id": [f"advertiser-{i % 5}" for i in range(count)],
            "bid": [None if i % 13 == 5 else round(float(bid), 3) for i, bid in enumerate(rng.uniform(0.1, 3, count))],
            "objective": [("impression", "click", "conversion", None)[i % 4] for i in range(count)],
            "ad_key": [None if i % 9 == 8 else f"key-{i}" for i in range(count)],
            "tags": pa.array([[f"t{i % 3}", f"t{i % 4}"][: i % 3] for i in range(count)], pa.list_(pa.string())),
            "price": pa.array([None if i % 6 == 1 else float(i) for i in range(count)], pa.float64()),
        }
    )


def make_query(seed: int) -> dict:
    return {
        "country": ("DE", "FR", "日本", "XX", None)[seed % 5],
        "device": ("DE", "FR")[seed % 2],
        "user_ctr": 0.1 + 0.01 * (seed % 50),
        "watch": {
            "ad": [f"key-{seed % 9}", "key-2", None][: seed % 4],
            "time": ["2026-02-20T00:00:00Z", "2026-03-01T11:00:00Z", 1772366000000][: seed % 4],
        },
    }


def saved_requests(scenario: str) -> list[dict]:
    return [
        {
            "scenario": scenario,
            "query": make_query(seed),
            "event_time": "2026-03-01T12:00:00Z",
            "candidates": {
                "ids": [f"{scenario}-{seed + 1}", f"{scenario}-{seed + 2}", "gone"],
                "affinity": [0.5, None, 1],
            },
        }
        for seed in range(3)
    ]


@pytest.fixture(scope="session")
def example_query() -> Callable[[int], dict]:
    """The features of one request; another seed, another request."""
    return make_query


@dataclass(frozen=True)
class World:
    """A built store. ``publish`` puts another release of a scenario on top."""

    root: Path
    store: DirectoryStore
    ads: dict[str, pa.Table]
    publish: Callable[[str, int], Release]


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles and indexes, built once: for each scenario two towers of other seeds, and one heavy ranker for both."""
    root = tmp_path_factory.mktemp("artifacts")
    seal_heavy(root / "heavy", seed=1)
    for number, scenario in enumerate(SCENARIOS):
        ads = make_ads(scenario, np.random.default_rng(100 + number))
        (root / "ads" / scenario).mkdir(parents=True)
        pq.write_table(ads, root / "ads" / scenario / "part-0.parquet")
        for generation in (0, 1):
            tower = root / f"{scenario}-{generation}"
            seal_two_tower(tower, scenario, seed=10 * number + generation, requests=saved_requests(scenario))
            build_index(
                ads=str(root / "ads" / scenario),
                two_tower=tower,
                heavy=root / "heavy",
                out=root / f"{scenario}-{generation}-index",
                config=IndexConfig(engine="onnxruntime_cpu"),
            )
    return root


@pytest.fixture(scope="session")
def world(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A store with the first generation of both scenarios published, for tests that change nothing in it."""
    return make_world(artifacts, tmp_path_factory.mktemp("world") / "store")


@pytest.fixture
def own_world(artifacts: Path, tmp_path: Path) -> World:
    """The same for one test alone, to publish to and to damage."""
    return make_world(artifacts, tmp_path / "store")


def make_world(artifacts: Path, root: Path) -> World:
    store = DirectoryStore(root)

    def publish(scenario: str, generation: int) -> Release:
        return store.publish(
            two_tower=artifacts / f"{scenario}-{generation}",
            heavy=artifacts / "heavy",
            index=artifacts / f"{scenario}-{generation}-index",
        )

    for scenario in SCENARIOS:
        publish(scenario, 0)
    ads = {scenario: pq.read_table(artifacts / "ads" / scenario) for scenario in SCENARIOS}
    return World(root, store, ads, publish)


@pytest.fixture(scope="session")
def settings(world: World) -> Settings:
    return make_settings(world)


@pytest.fixture
def own_settings(own_world: World) -> Settings:
    return make_settings(own_world)


def make_settings(world: World) -> Settings:
    return Settings(
        store=world.root, engine_threads=1, heavy_engine="onnxruntime_cpu", poll_interval_s=0.05, failed_retry_s=0.0
    )


@pytest.fixture(scope="session")
def snapshot(world: World) -> Snapshot:
    """What serves ``world``."""
    return load_snapshot(world.store, engine_threads=1)


@pytest.fixture(scope="session")
def as_built() -> Callable[..., LiveIndex]:
    """Opens an index without any update."""
    return lambda index, two_tower, heavy: LiveIndex(index, two_tower.schema)
