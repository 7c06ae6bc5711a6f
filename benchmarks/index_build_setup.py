"""What ``benchmarks.index_build`` measures: a two-tower bundle of a production size, a heavy bundle, a catalogue.

The towers are ``standard()`` scaled from width 64 to 640: four experts of one full-rank and two low-rank cross layers
and an MLP, 12.1 MFLOPs an ad. 40 features of an ad: 16 categories (of which six are integers), 4 lists, 19 numbers and
an embedding of 32. Weights are random, drawn so that no cross layer is near the identity.
"""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

from contracts.artifact import write_json
from contracts.bundle import GRAPHS, PARITY_FILE, WEIGHTS_FILE, Bundle, seal_bundle
from contracts.config import convert
from contracts.encoding import Encoder
from contracts.schema import FeatureSchema
from modeling.profile import PROFILE_FILE, side_profile
from towers.build import build_two_tower
from towers.config import TwoTowerConfig
from towers.export import ParityRows, export_two_tower
from towers.presets import standard
from towers.two_tower import TwoTower

WIDTH, HEAD_DIM = 640, 32
CATEGORIES, LISTS, NUMBERS = 14, 4, 19
"""Beside the ids of ad and advertiser and one embedding."""
EMBEDDING = 32
PARITY_QUERIES, PARITY_ADS = 32, 4096
ROWS_PER_FILE = 100_000
ROWS_PER_GROUP = 50_000
SCENARIO = "standard"
_BUCKETS = (200_000, 20_000, 5_000, 1_000, 1_000, 200, 200, 50, 50, 20, 20, 10, 10, 5)
"""Rows of the tables of the categories; their features take about as many values."""


def towers() -> TwoTowerConfig:
    """The preset ``standard()``, as wide as a production model."""
    tower = msgspec.structs.replace(standard().pin, width=WIDTH, rank=WIDTH // 8, hidden_dims=(WIDTH,))
    return TwoTowerConfig(query=standard().query, pin=tower, head_dim=HEAD_DIM)


def make_schema() -> FeatureSchema:
    """40 features of an ad and three of a request; nothing has to be fitted."""
    tables = {"ad": {"dim": 32, "buckets": 1_000_003}, "advertiser": {"dim": 16, "buckets": 50_000}}
    tables |= {f"category_{n}": {"dim": 16, "buckets": rows + 3} for n, rows in enumerate(_BUCKETS)}
    tables |= {"word": {"dim": 16, "buckets": 20_000}, "country": {"dim": 8, "buckets": 64}}
    features: dict[str, dict] = {
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "advertiser_id": {"side": "ad", "kind": "categorical", "table": "advertiser"},
        "image": {"side": "ad", "kind": "embedding", "length": EMBEDDING},
        "country": {"side": "query", "kind": "categorical", "table": "country"},
        "activity": {"side": "query", "kind": "dense", "default": 0.0},
    }
    for n in range(CATEGORIES):
        features[f"category_{n}"] = {"side": "ad", "kind": "categorical", "table": f"category_{n}"}
    for n in range(LISTS):
        features[f"words_{n}"] = {"side": "ad", "kind": "multi_categorical", "table": "word", "max_length": 4}
    for n in range(NUMBERS):
        transform = ("standardize", "log1p", "none")[n % 3]
        fitted = {"fitted": {"mean": 1.0, "std": 2.0}} if transform == "standardize" else {}
        features[f"number_{n:02}"] = {"side": "ad", "kind": "dense", "transform": transform, "default": 0.5, **fitted}
    data = {
        "tasks": ["click", "conversion"],
        "objectives": {"click": "click", "conversion": "conversion"},
        "tables": tables,
        "features": features,
    }
    return convert(data, FeatureSchema, source="benchmarks/index_build_setup.py")


def ads_table(first: int, count: int) -> pa.Table:
    """Ads ``first`` to ``first + count``, the same in every call; 3 % of the values of each number are missing."""
    rng = np.random.default_rng(first)
    number = np.arange(first, first + count)
    columns: dict[str, pa.Array] = {
        "ad_id": _texts("ad-", number * 7_919 % 10_000_019),
        "valid_from": pa.array(1_700_000_000_000_000 + number * 1_000_003, pa.timestamp("us", "UTC")),
        "scenario": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [SCENARIO]).cast(pa.string()),
        "status": pa.array(np.array(["active", "paused"], object)[(rng.random(count) < 0.1).astype(int)]),
        "bid": pa.array(rng.lognormal(0, 1, count).astype(np.float32)),
        "objective": pa.array(np.array(["click", "conversion"], object)[(rng.random(count) < 0.3).astype(int)]),
        "advertiser_id": _texts("advertiser-", _zipf(rng, 40_000, count)),
    }
    for n, size in enumerate(_BUCKETS):
        drawn = _zipf(rng, size, count)
        columns[f"category_{n}"] = pa.array(drawn) if n % 3 == 0 else _texts(f"c{n}-", drawn)
    for n in range(LISTS):
        lengths = rng.integers(0, 6, count)
        words = _texts("word-", _zipf(rng, 15_000, int(lengths.sum())))
        columns[f"words_{n}"] = pa.ListArray.from_arrays(np.r_[0, np.cumsum(lengths)].astype(np.int32), words)
    for n in range(NUMBERS):
        values = rng.gamma(1.5, 1.5, count).astype(np.float32)
        columns[f"number_{n:02}"] = pa.array(values, mask=rng.random(count) < 0.03)
    image = rng.standard_normal(count * EMBEDDING, np.float32)
    columns["image"] = pa.FixedSizeListArray.from_arrays(image, EMBEDDING).cast(pa.list_(pa.float32()))
    return pa.table(columns)


def write_ads(directory: Path, num_ads: int) -> Path:
    """Write a catalogue of files of 100,000 ads."""
    directory.mkdir()
    for first in range(0, num_ads, ROWS_PER_FILE):
        table = ads_table(first, min(ROWS_PER_FILE, num_ads - first))
        pq.write_table(table, directory / f"{first // ROWS_PER_FILE:04}.parquet", row_group_size=ROWS_PER_GROUP)
    return directory


def make_model() -> TwoTower:
    """Both towers with random weights; cross layers start small, which would flatter BF16, and are drawn larger."""
    return drawn_larger(build_two_tower(make_schema(), towers(), seed=0))


def drawn_larger(model: TwoTower) -> TwoTower:
    """The model, ready to be sealed, with larger weights of cross layers and biases that are not zero."""
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".cross." in name and name.endswith("weight") and "down" not in name:
                parameter.mul_(2.0)
            elif name.endswith("bias") and not name.startswith("tables."):
                parameter.uniform_(-0.1, 0.1)
    return model


def seal(model: TwoTower, target: Path) -> Bundle:
    """The model as a bundle, with parity rows and the profile of a training set like the catalogue."""
    schema = make_schema()
    ads = Encoder(schema, "ad").encode(ads_table(20_000_000, PARITY_ADS)).encoded
    rng = np.random.default_rng(1)
    columns = {
        "country": pa.array(rng.integers(0, 60, PARITY_QUERIES)),
        "activity": pa.array(rng.standard_normal(PARITY_QUERIES)),
    }
    query = Encoder(schema, "query").encode(columns).encoded
    training = Encoder(schema, "ad").encode(ads_table(30_000_000, ROWS_PER_GROUP))

    def fill(directory: Path) -> None:
        export_two_tower(model, directory, ParityRows(query, ads.take(np.arange(64))))
        profile = side_profile(schema, "ad", training.encoded, training.coverage)
        write_json(directory / PROFILE_FILE, {"ad": profile})

    return seal_bundle(
        target,
        kind="two_tower",
        scenario=SCENARIO,
        schema=schema,
        config=msgspec.to_builtins(towers()),
        dims={"num_heads": len(schema.tasks), "head_dim": HEAD_DIM},
        watermark="2026-01-01T00:00:00+00:00",
        fill=fill,
    )


def seal_heavy(two_tower: Bundle, target: Path) -> Bundle:
    """A heavy bundle of the same features and profile, without a model: a build encodes for its schema, and no more."""

    def fill(directory: Path) -> None:
        for name in GRAPHS["heavy"]:
            (directory / name).write_bytes(b"")
        for name in (WEIGHTS_FILE, PARITY_FILE):
            save_file({}, directory / name)
        (directory / PROFILE_FILE).write_bytes(two_tower.file(PROFILE_FILE).read_bytes())

    return seal_bundle(
        target,
        kind="heavy",
        scenario=SCENARIO,
        schema=two_tower.schema,
        config={},
        dims={},
        watermark="2026-01-01T00:00:00+00:00",
        fill=fill,
    )


def _texts(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pa.compute.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _zipf(rng: np.random.Generator, values: int, count: int) -> np.ndarray:
    """``count`` of ``values`` values, the v-th as often as 1 / v or so."""
    return (values ** rng.random(count)).astype(np.int64) - 1
