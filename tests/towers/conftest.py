"""A small schema with every kind of feature a tower reads, rows encoded by the real encoder, and a model."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
import torch

from contracts.config import convert
from contracts.encoding import Encoded, Encoder
from contracts.schema import FeatureSchema
from towers.build import build_two_tower
from towers.config import TowerConfig, TwoTowerConfig
from towers.two_tower import TwoTower

NOW = 1_740_000_000_000_000
SCHEMA = {
    "version": 1,
    "tasks": ["click", "conversion"],
    "objectives": {"impression": None, "click": "click", "conversion": "conversion"},
    "tables": {
        "country": {"dim": 4, "vocabulary": ["DE", "FR"]},
        "ad": {"dim": 8, "buckets": 64},
        "topic": {"dim": 4, "buckets": 32},
    },
    "features": {
        "country": {"side": "query", "kind": "categorical", "table": "country"},
        "user_ctr": {"side": "query", "kind": "dense", "default": 0.4},
        "clicks": {
            "side": "query",
            "kind": "sequence",
            "max_length": 5,
            "fields": {"ad_id": {"kind": "categorical", "table": "ad"}, "time": {"kind": "age", "buckets": 8}},
        },
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "topics": {"side": "ad", "kind": "multi_categorical", "table": "topic", "max_length": 3},
        "image": {"side": "ad", "kind": "embedding", "length": 6},
        "price": {"side": "ad", "kind": "dense", "transform": "log1p", "default": 1.0},
    },
}


@dataclass(frozen=True)
class Rows:
    """Encoded rows of both sides."""

    query: Encoded
    ads: Encoded

    def tensors(self, side: str) -> tuple[torch.Tensor, torch.Tensor]:
        encoded = self.query if side == "query" else self.ads
        return torch.tensor(encoded.ids), torch.tensor(encoded.floats)


@pytest.fixture(scope="session")
def schema() -> FeatureSchema:
    return convert(SCHEMA, FeatureSchema, source="schema")


@pytest.fixture(scope="session")
def config() -> TwoTowerConfig:
    return TwoTowerConfig(query=tower_config(width=16), pin=tower_config(width=12), head_dim=6)


def tower_config(*, width: int) -> TowerConfig:
    return TowerConfig(
        width=width,
        num_experts=3,
        full_rank_layers=1,
        low_rank_layers=2,
        rank=2,
        hidden_dims=(8,),
        gate_hidden_dim=4,
        dropout=0.1,
    )


@pytest.fixture(scope="session")
def rows(schema: FeatureSchema) -> Rows:
    """Rows with missing values, unknown values, empty histories and non-ASCII text."""
    query = {
        "country": pa.array(["DE", None, "XX", "FR", "DE"]),
        "user_ctr": pa.array([0.1, 0.9, None, 0.4, 0.2], pa.float32()),
        "clicks.ad_id": pa.array([["a1", "ä2"], [], None, ["a3", None, "a4"], ["a1"] * 9]),
        "clicks.time": pa.array(
            [[NOW - 9_000_000, NOW - 5], [], None, [NOW - 10**12, NOW - 10**10, NOW], [NOW] * 9],
            pa.list_(pa.timestamp("us", "UTC")),
        ),
    }
    ads = {
        "ad_id": pa.array([f"ä{n}" for n in range(7)]),
        "topics": pa.array([["x"], [], None, ["x", "y"], ["z"], ["y"], ["x", "y", "z", "w"]]),
        "image": pa.array(np.random.default_rng(3).normal(size=(7, 6)).tolist(), pa.list_(pa.float32())),
        "price": pa.array([1.0, None, 300.0, 2.5, 0.0, 7.0, 9.0]),
    }
    event_time = np.full(5, NOW, np.int64)
    return Rows(
        query=Encoder(schema, "query").encode(query, event_time=event_time).encoded,
        ads=Encoder(schema, "ad").encode(ads).encoded,
    )


@pytest.fixture(scope="session")
def model(schema: FeatureSchema, config: TwoTowerConfig) -> TwoTower:
    """Weights away from their initial symmetry, as after training."""
    model = build_two_tower(schema, config, seed=5)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for tower in (model.query_tower, model.pin_tower):
            for parameter in tower.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()
