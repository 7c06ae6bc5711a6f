"""Retrieval finds what exact utility would have chosen from the whole index."""

import msgspec
import numpy as np
import pytest

from contracts.probability import sigmoid
from service.deadline import Deadline
from service.ranker import rank
from service.wire import decode_request


def light(body, snapshot, settings):
    request = decode_request(msgspec.json.encode(body | {"stage": "light", "event_time": "2026-03-01T12:00:00Z"}))
    return rank(request, snapshot, settings, Deadline()).response.ads


@pytest.mark.parametrize("excluded", [[], ["advertiser-1", "advertiser-4"]])
def test_retrieval_keeps_the_best_of_the_whole_index(world, snapshot, settings, example_query, excluded):
    everything = world.ads["standard"]["ad_id"].to_pylist()
    rng = np.random.default_rng(2)
    recalls = []
    for seed in range(12):
        query = example_query(seed) | {"user_ctr": float(rng.normal())}
        filters = {"exclude_advertisers": excluded}
        body = {"scenario": "standard", "query": query, "survivors": 30, "filters": filters}
        found, exact = light(body, snapshot, settings), light(body | {"candidates": everything}, snapshot, settings)
        assert len(found.ids) == len(set(found.ids)) == 30
        recalls.append(len(set(found.ids) & set(exact.ids)) / 30)
    assert np.mean(recalls) >= 0.99


def test_the_tangent_is_an_upper_bound_that_touches(snapshot, example_query):
    """Above log sigmoid everywhere, equal at its point: the search can only put an ad too high, never too low."""
    loaded = snapshot.releases["standard"]
    rng = np.random.default_rng(5)
    embedding = rng.normal(size=(2, 6)).astype(np.float32)
    slopes, offsets = loaded.retriever.tangents(embedding, 30)
    logits = np.linspace(-30, 30, 2001)[:, None]
    bound = logits * slopes + offsets
    curve = np.log(np.maximum(sigmoid(logits), 1e-300))
    gap = bound - curve
    assert (gap >= -1e-5).all()
    assert (gap.min(axis=0) < 1e-3).all()


def test_a_small_index_is_found_whole(world, snapshot, settings, example_query):
    body = {"scenario": "shopping", "query": example_query(1), "survivors": 40}
    found = light(body, snapshot, settings)
    exact = light(body | {"candidates": world.ads["shopping"]["ad_id"].to_pylist()}, snapshot, settings)
    assert sorted(found.ids) == sorted(set(exact.ids))
    np.testing.assert_allclose(sorted(found.utilities), sorted(exact.utilities), rtol=1e-5)


def test_only_allowed_rows_are_found(snapshot):
    loaded = snapshot.releases["standard"]
    embedding = np.random.default_rng(6).normal(size=(2, 6)).astype(np.float32)
    rows = loaded.retriever.rows(embedding, 10, 40, loaded.live.allowed())
    assert len(rows) == 40
    assert loaded.live.servable(rows).all()
    assert (np.diff(rows) > 0).all()


def test_ads_that_a_missing_bid_drops_take_no_place(snapshot, settings, example_query, world):
    body = {"scenario": "standard", "query": example_query(2), "survivors": 3_000}
    found = light(body, snapshot, settings)
    ads = {ad["ad_id"]: ad for ad in world.ads["standard"].to_pylist()}
    can_serve = {ad_id for ad_id, ad in ads.items() if ad["status"] == "active" and ad["bid"] is not None}
    assert set(found.ids) == can_serve
    with_median = light(body, snapshot, settings.model_copy(update={"missing_bids": "median"}))
    assert set(with_median.ids) == {ad_id for ad_id, ad in ads.items() if ad["status"] == "active"}
