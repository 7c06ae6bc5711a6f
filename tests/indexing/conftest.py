"""Small real bundles (schemas, tables, ONNX graphs that an engine runs) and a small ads dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from contracts.bundle import Bundle, seal_bundle
from contracts.config import convert
from contracts.encoding import Encoder
from contracts.schema import FeatureSchema
from engines.lookup import TableLookup

HEAD_DIM = 4
TABLES = {"country": {"dim": 3, "vocabulary": ["DE", "FR"]}, "ad": {"dim": 4, "buckets": 997}}
TASKS = {
    "version": 1,
    "tasks": ["click", "conversion"],
    "objectives": {"impression": None, "click": "click", "conversion": "conversion"},
}
COUNTRY = {"side": "query", "kind": "categorical", "table": "country"}
TOWER_SCHEMA = {
    **TASKS,
    "tables": {**TABLES, "category": {"dim": 2, "vocabulary": ["shoes", "Bücher"]}},
    "features": {
        "country": COUNTRY,
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "category": {"side": "ad", "kind": "categorical", "table": "category"},
        "price": {"side": "ad", "kind": "dense", "transform": "log1p", "default": 1.0},
    },
}
HEAVY_SCHEMA = {
    **TASKS,
    "tables": TABLES,
    "features": {
        "country": COUNTRY,
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "image": {"side": "ad", "kind": "embedding", "length": 2},
        "clicks": {"side": "pair", "kind": "dense", "default": 0.0},
    },
}

MakeBundle = Callable[..., Bundle]


@pytest.fixture(scope="session")
def tower_schema() -> dict[str, Any]:
    """The schema of the two-tower bundles, as plain data."""
    return TOWER_SCHEMA


@pytest.fixture(scope="session")
def heavy_schema() -> dict[str, Any]:
    """The schema of the heavy bundles, as plain data."""
    return HEAVY_SCHEMA


@pytest.fixture(scope="session")
def make_two_tower() -> MakeBundle:
    """Seals a two-tower bundle whose towers are one linear layer; ``seed`` makes another model of the same schema."""

    def make(target: Path, *, seed: int = 0, scenario: str | None = "shopping", schema: dict | None = None) -> Bundle:
        fitted = convert(schema or TOWER_SCHEMA, FeatureSchema, source="schema")
        return _seal(target, "two_tower", fitted, scenario, lambda directory: _fill_towers(directory, fitted, seed))

    return make


@pytest.fixture(scope="session")
def make_heavy() -> MakeBundle:
    """Seals a bundle of kind heavy; indexing reads only its schema."""

    def make(target: Path, *, seed: int = 0, scenario: str | None = None, schema: dict | None = None) -> Bundle:
        fitted = convert(schema or HEAVY_SCHEMA, FeatureSchema, source="schema")

        def fill(directory: Path) -> None:
            rng = np.random.default_rng(seed)
            for name in ("request.onnx", "ads.onnx"):
                _save_linear(directory / name, rng.normal(size=(3, 4)), np.zeros(4), "logits", [2, 2])
            save_file({"tables.country": rng.normal(size=(5, 3))}, directory / "weights.safetensors")
            save_file({"in.flat": np.zeros((1, 3))}, directory / "parity.safetensors")

        return _seal(target, "heavy", fitted, scenario, fill)

    return make


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory, make_two_tower: MakeBundle, make_heavy: MakeBundle) -> Path:
    """A directory with the bundles ``two_tower`` and ``heavy``."""
    directory = tmp_path_factory.mktemp("bundles")
    make_two_tower(directory / "two_tower")
    make_heavy(directory / "heavy")
    return directory


def ads_columns(num_ads: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    objectives = np.array(["click", "conversion", "impression", None], object)
    return {
        "ad_id": [f"ad-{number}-ü" if number % 7 == 0 else f"ad-{number}" for number in range(num_ads)],
        "valid_from": pa.array(rng.integers(0, 10**15, num_ads), pa.timestamp("us", "UTC")),
        "scenario": [("shopping", "standard")[number % 5 == 4] for number in range(num_ads)],
        "status": [("active", "paused", None)[code] for code in rng.integers(0, 3, num_ads)],
        "bid": [None if bid < 0.2 else round(bid, 3) for bid in rng.random(num_ads)],
        "objective": list(objectives[rng.integers(0, 4, num_ads)]),
        "advertiser_id": [None if code == 0 else f"advertiser-{code}" for code in rng.integers(0, 9, num_ads)],
        "category": [("shoes", "Bücher", "other", None)[code] for code in rng.integers(0, 4, num_ads)],
        "price": [None if price < 2 else price for price in rng.random(num_ads) * 20],
        "image": [None if row[0] < 0.1 else row.tolist() for row in rng.random((num_ads, 2))],
    }


@pytest.fixture(scope="session")
def ads_table() -> Callable[..., pa.Table]:
    """Makes ads of both scenarios: four of five are of ``shopping``."""
    return lambda num_ads=200, seed=0, **columns: pa.table({**ads_columns(num_ads, seed), **columns})


@pytest.fixture(scope="session")
def ads(tmp_path_factory: pytest.TempPathFactory, ads_table: Callable[..., pa.Table]) -> Path:
    """A dataset of three files: 200 ads, and later rows of the first 50."""
    directory = tmp_path_factory.mktemp("ads")
    first, later = ads_table(), ads_table(50, seed=1)
    shifted = pa.array(later["valid_from"].cast(pa.int64()).to_numpy() + 10**15, pa.timestamp("us", "UTC"))
    later = later.set_column(1, "valid_from", shifted)
    for name, table in (("a", first.slice(0, 120)), ("b", later), ("c", first.slice(120))):
        pq.write_table(table, directory / f"{name}.parquet", row_group_size=32)
    return directory


def _seal(target: Path, kind: Any, schema: FeatureSchema, scenario: str | None, fill: Callable[[Path], None]) -> Bundle:
    return seal_bundle(
        target,
        kind=kind,
        scenario=scenario,
        schema=schema,
        config={},
        dims={"head_dim": HEAD_DIM},
        watermark="2026-01-01T00:00:00+00:00",
        fill=fill,
    )


def _fill_towers(directory: Path, schema: FeatureSchema, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = {
        f"tables.{name}": rng.normal(size=(table.num_rows, table.dim)).astype(np.float32)
        for name, table in schema.all_tables().items()
    }
    save_file(tables, directory / "weights.safetensors")
    parity = {}
    for side, name, output, one_at in (
        ("query", "query_tower", "query", HEAD_DIM),
        ("ad", "pin_tower", "pin", HEAD_DIM + 1),
    ):
        encoder = Encoder(schema, side)
        lookup = TableLookup(encoder.layout, tables, pool_sequences=True)
        rows = encoder.encode({}, num_rows=2, absent="missing").encoded
        flat = lookup(rows.ids, rows.floats).flat
        weight, offset = _linear_tower(rng, flat.shape[1], len(schema.tasks), one_at)
        _save_linear(directory / f"{name}.onnx", weight, offset, "embedding", [len(schema.tasks), HEAD_DIM + 2])
        parity |= {f"in.{side}_ids": rows.ids, f"in.{side}_floats": rows.floats}
        parity[f"out.{output}_embedding"] = (flat @ weight + offset).reshape(2, -1, HEAD_DIM + 2)
    save_file(parity, directory / "parity.safetensors")
    (directory / "requests.jsonl").write_bytes(b"".join(msgspec.json.encode(body) + b"\n" for body in saved_requests()))


def saved_requests() -> list[dict[str, Any]]:
    """Requests of ``shopping`` with all its first ads, of which some are paused, and one that no index holds."""
    ids = [f"ad-{number}-ü" if number % 7 == 0 else f"ad-{number}" for number in range(60) if number % 5 < 4]
    return [
        {
            "scenario": "shopping",
            "event_time": "2026-03-01T12:00:00Z",
            "query": {"country": ("DE", "FR", "XX")[seed % 3]},
            "candidates": {"ids": [*ids, "gone"], "bids": [0.5 + (seed + at) % 5 for at in range(len(ids) + 1)]},
        }
        for seed in range(12)
    ]


def _linear_tower(
    rng: np.random.Generator, flat_dim: int, num_heads: int, one_at: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of a tower whose output is 1 at one position of each head, as the biases need it."""
    weight = 0.2 * rng.normal(size=(flat_dim, num_heads, HEAD_DIM + 2)).astype(np.float32)
    offset = rng.normal(size=(num_heads, HEAD_DIM + 2)).astype(np.float32) - 1
    weight[:, :, one_at], offset[:, one_at] = 0, 1
    return weight.reshape(flat_dim, -1), offset.reshape(-1)


def _save_linear(path: Path, weight: np.ndarray, offset: np.ndarray, output: str, shape: list[int]) -> None:
    constants = {
        "weight": weight.astype(np.float32),
        "offset": offset.astype(np.float32),
        "shape": np.array([-1, *shape]),
    }
    nodes = [
        helper.make_node("Gemm", ["flat", "weight", "offset"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], [output]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["B", weight.shape[0]])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["B", *shape])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
