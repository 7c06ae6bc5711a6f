"""What the tests of the contracts share: a schema with every kind of feature, its fitted form, compiled kernels."""

import copy
from types import ModuleType
from typing import Any

import msgspec
import pytest

from contracts import compiled
from contracts.config import convert
from contracts.schema import FeatureSchema, Fitted, Table

SCHEMA: dict[str, Any] = {
    "version": 1,
    "tasks": ["click", "conversion"],
    "objectives": {"impression": None, "click": "click", "conversion": "conversion"},
    "tables": {
        "video": {"dim": 16, "buckets": 1000},
        "tag": {"dim": 8, "vocabulary": ["1", "39", "été"]},
        "country": {"dim": 4, "max_values": 3},
    },
    "features": {
        "country": {"side": "query", "kind": "categorical", "table": "country"},
        "user_ctr": {"side": "query", "kind": "dense", "transform": "standardize", "default": 0.45},
        "visits": {"side": "query", "kind": "dense", "transform": "quantile", "buckets": 4},
        "video_id": {"side": "ad", "kind": "categorical", "table": "video"},
        "tags": {"side": "ad", "kind": "multi_categorical", "table": "tag", "max_length": 3},
        "price": {"side": "ad", "kind": "dense", "transform": "log1p_standardize"},
        "image": {"side": "ad", "kind": "embedding", "length": 3},
        "user_advertiser_clicks": {"side": "pair", "kind": "dense", "transform": "log1p"},
        "seen": {"side": "pair", "kind": "categorical", "table": "tag"},
        "watch": {
            "side": "query",
            "kind": "sequence",
            "max_length": 4,
            "fields": {
                "video_id": {"kind": "categorical", "table": "video"},
                "tag": {"kind": "categorical", "table": "tag"},
                "time": {"kind": "age", "buckets": 12, "dim": 2},
            },
        },
    },
}

FITTED = {
    "user_ctr": Fitted(mean=0.4, std=0.1),
    "visits": Fitted(edges=(0.0, 1.0, 4.0, 10.0)),
    "price": Fitted(mean=2.0, std=0.5),
    "user_advertiser_clicks": Fitted(mean=1.5, std=1.0),
}


@pytest.fixture
def schema_data() -> dict[str, Any]:
    """Plain data of an unfitted schema with every kind of feature; the caller may change it."""
    return copy.deepcopy(SCHEMA)


@pytest.fixture
def unfitted(schema_data: dict[str, Any]) -> FeatureSchema:
    return convert(schema_data, FeatureSchema, source="schema.yaml")


@pytest.fixture(scope="session")
def schema() -> FeatureSchema:
    """The same schema, fitted."""
    unfitted = convert(SCHEMA, FeatureSchema, source="schema.yaml")
    features = {
        name: msgspec.structs.replace(feature, fitted=FITTED.get(name)) for name, feature in unfitted.features.items()
    }
    tables = {**unfitted.tables, "country": Table(dim=4, vocabulary=("DE", "FR", "中国"))}
    return msgspec.structs.replace(unfitted, tables=tables, features=features)


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    """Compiled ones, where Numba is there."""
    pytest.importorskip("numba")
    assert compiled.prepare()
    found = compiled.kernels()
    assert found is not None
    return found
