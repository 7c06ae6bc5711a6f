"""What ``benchmarks.serving`` sends: ads, bodies of ``POST /rank`` and the schema that both follow.

The schema is that of ``benchmarks.iqiyi_schema``: 18 features and three histories of 50 events of a request, 18
features of an ad, and for the heavy ranker four of a pair, which no body brings. The towers read all but the pairs'.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.iqiyi_schema import BAGS, CATEGORICAL, DENSE, EVENTS, SEQUENCES, iqiyi_schema
from contracts.schema import FeatureSchema

SCENARIO = "standard"
OBJECTIVES = ("click", "conversion")
EVENT_TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)
BLOCK = 100_000
"""Ads whose features are drawn; another block has the same ones but for its ids and one number."""
UNKNOWN_SHARE = 0.02
_VALUES = 50_000
_MINUTE_MS = 60_000


def towers_schema() -> FeatureSchema:
    """Of the towers: no tower can read a feature of a pair."""
    schema = iqiyi_schema()
    features = {name: feature for name, feature in schema.features.items() if feature.side != "pair"}
    return msgspec.structs.replace(schema, features=features)


def ad_ids(first: int, count: int) -> list[str]:
    """Ids of ads ``first`` to ``first + count``."""
    return [f"ad-{number:08d}" for number in range(first, first + count)]


def ads_block(first: int) -> pa.Table:
    """Ads ``first`` to ``first + BLOCK``, the same in every call."""
    rng, drawn = np.random.default_rng(first), np.random.default_rng(0)
    columns: dict[str, Any] = {
        "ad_id": ad_ids(first, BLOCK),
        "valid_from": pa.array(np.full(BLOCK, 1_700_000_000_000_000), pa.timestamp("us", "UTC")),
        "scenario": [SCENARIO] * BLOCK,
        "status": ["active"] * BLOCK,
        "bid": pa.array(drawn.lognormal(0, 0.5, BLOCK).astype(np.float32)),
        "objective": pa.array(np.array(OBJECTIVES)[drawn.integers(0, 2, BLOCK)]),
        "advertiser_id": _texts("advertiser-", drawn.integers(0, 5_000, BLOCK)),
        "ad_id_0": _texts("ad-", np.arange(first, first + BLOCK)),
    }
    for number in range(1, CATEGORICAL):
        columns[f"ad_id_{number}"] = _texts(f"v{number}-", drawn.integers(0, _VALUES, BLOCK))
    for number in range(CATEGORICAL, CATEGORICAL + BAGS):
        lengths = drawn.integers(0, 5, BLOCK)
        words = _texts("word-", drawn.integers(0, _VALUES, int(lengths.sum())))
        columns[f"ad_bag_{number}"] = pa.ListArray.from_arrays(np.r_[0, np.cumsum(lengths)].astype(np.int32), words)
    for number in range(DENSE):
        columns[f"ad_dense_{number}"] = pa.array((drawn if number else rng).gamma(1.5, 1.5, BLOCK))
    return pa.table(columns)


def bodies(count: int, *, num_ads: int, candidates: int, stage: str) -> list[dict[str, Any]]:
    """``count`` requests; one candidate of fifty is no ad of the index."""
    return [_body(np.random.default_rng(seed), num_ads, candidates, stage) for seed in range(count)]


def _body(rng: np.random.Generator, num_ads: int, candidates: int, stage: str) -> dict[str, Any]:
    chosen = rng.choice(num_ads, candidates, replace=False)
    ids = [f"ad-{number:08d}" for number in chosen]
    for place in rng.choice(candidates, int(candidates * UNKNOWN_SHARE), replace=False):
        ids[place] = f"no-{chosen[place]:08d}"
    return {
        "scenario": SCENARIO,
        "stage": stage,
        "event_time": EVENT_TIME.isoformat(),
        "query": _query(rng),
        "candidates": {"ids": ids, "bids": [round(bid, 4) for bid in rng.lognormal(0, 0.5, candidates).tolist()]},
    }


def _query(rng: np.random.Generator) -> dict[str, Any]:
    query: dict[str, Any] = {
        f"query_id_{number}": f"q{number}-{rng.integers(_VALUES)}" for number in range(CATEGORICAL)
    }
    for number in range(CATEGORICAL, CATEGORICAL + BAGS):
        query[f"query_bag_{number}"] = [f"word-{word}" for word in rng.integers(0, _VALUES, rng.integers(1, 5))]
    query |= {f"query_dense_{number}": round(float(rng.gamma(1.5, 1.5)), 4) for number in range(DENSE)}
    return query | {name: _history(rng) for name in SEQUENCES}


def _history(rng: np.random.Generator) -> dict[str, list[Any]]:
    ages = np.sort(rng.exponential(3 * 24 * 60, EVENTS))[::-1].astype(np.int64)
    now = int(EVENT_TIME.timestamp() * 1000)
    return {
        "ad": [f"ad-{number}" for number in rng.integers(0, BLOCK, EVENTS)],
        "advertiser": [f"advertiser-{number}" for number in rng.integers(0, 5_000, EVENTS)],
        "category": [f"category-{number}" for number in rng.integers(0, 200, EVENTS)],
        "time": (now - ages * _MINUTE_MS).tolist(),
    }


def _texts(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pa.compute.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")
