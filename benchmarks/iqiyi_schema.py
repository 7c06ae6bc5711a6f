"""A schema of the size that the published CVR model is described with: what benchmarks build the ``iqiyi`` preset on.

40 features beside the sequences (18 of the query, 18 of the ad, 4 of the pair) and 3 behaviour sequences of 50 events
with four fields each. All tables are hashed and no dense feature is fitted, so the schema is ready as it is.
"""

from typing import Any

from contracts.config import convert
from contracts.schema import FeatureSchema

SEQUENCES = ("clicks", "conversions", "views")
EVENTS = 50
CATEGORICAL, BAGS, DENSE = 10, 2, 6
"""Features of the query, and as many of the ad."""
PAIR = 4
EMBEDDING_DIM = 16
BUCKETS = 20_000


def iqiyi_schema(*, buckets: int = BUCKETS) -> FeatureSchema:
    """The schema.

    Args:
        buckets: Rows of each large table.
    """
    tables = {
        "ad": {"dim": EMBEDDING_DIM, "buckets": buckets},
        "advertiser": {"dim": EMBEDDING_DIM, "buckets": buckets},
    }
    tables["category"] = {"dim": EMBEDDING_DIM // 2, "buckets": 256}
    features: dict[str, Any] = {name: _sequence() for name in SEQUENCES}
    for side in ("query", "ad"):
        features |= _side(side)
    own = {feature["table"] for feature in features.values() if "table" in feature} - tables.keys()
    tables |= {name: {"dim": EMBEDDING_DIM, "buckets": buckets} for name in sorted(own)}
    features |= {f"pair_dense_{n}": _dense("pair") for n in range(PAIR)}
    data = {
        "tasks": ["click", "conversion"],
        "objectives": {"click": "click", "conversion": "conversion"},
        "tables": tables,
        "features": features,
    }
    return convert(data, FeatureSchema, source="benchmarks/iqiyi_schema.py")


def _side(side: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"{side}_id_{n}": {"side": side, "kind": "categorical", "table": f"{side}_{n}"} for n in range(CATEGORICAL)
    }
    if side == "ad":
        found |= {"ad_id_0": {"side": "ad", "kind": "categorical", "table": "ad"}}
        found |= {"ad_id_1": {"side": "ad", "kind": "categorical", "table": "advertiser"}}
        found |= {"ad_id_2": {"side": "ad", "kind": "categorical", "table": "category"}}
    for n in range(CATEGORICAL, CATEGORICAL + BAGS):
        bag = {"side": side, "kind": "multi_categorical", "table": f"{side}_{n}", "max_length": 4, "pooling": "mean"}
        found[f"{side}_bag_{n}"] = bag
    return found | {f"{side}_dense_{n}": _dense(side) for n in range(DENSE)}


def _dense(side: str) -> dict[str, Any]:
    return {"side": side, "kind": "dense", "transform": "log1p", "default": 0.0}


def _sequence() -> dict[str, Any]:
    fields = {name: {"kind": "categorical", "table": name} for name in ("ad", "advertiser", "category")}
    return {
        "side": "query",
        "kind": "sequence",
        "max_length": EVENTS,
        "fields": fields | {"time": {"kind": "age", "buckets": 32, "dim": 8}},
    }
