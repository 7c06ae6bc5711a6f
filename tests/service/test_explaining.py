"""``explain`` tells what was encoded, what each head said, and where each candidate fell out and why."""

import math

import msgspec
import numpy as np
import pytest
import xxhash

from contracts.rows import encode_request
from indexing.update_log import UpdateLog
from indexing.update_record import Update
from service import explaining, tracing
from service.app import create_app
from service.deadline import Deadline
from service.ranker import rank
from service.request_inputs import EPOCH
from service.wire import decode_request

EVENT_TIME = "2026-03-01T12:00:00Z"


def answer(body, snapshot, settings, **changed):
    request = decode_request(msgspec.json.encode(body))
    return rank(request, snapshot, settings.model_copy(update=changed), Deadline()).response


@pytest.fixture
def body(example_query):
    return {"scenario": "shopping", "query": example_query(1), "event_time": EVENT_TIME, "explain": True}


def sigmoid(logit):
    return 1 / (1 + math.exp(-logit))


def test_features_are_told_as_they_were_encoded(snapshot, settings, body):
    query = {
        "country": "DE",
        "device": "XX",
        "user_ctr": 0.25,
        "watch": {"ad": ["key-1", None, "key-2"], "time": ["2026-02-20T00:00:00Z", None, "2026-03-01T11:00:00Z"]},
    }
    explained = answer(body | {"query": query, "candidates": ["shopping-1"]}, snapshot, settings).explain
    release = snapshot.releases["shopping"]
    assert explained.features.keys() == {release.release.two_tower, release.release.heavy}
    light, heavy = (
        explained.features[version].encoded for version in (release.release.two_tower, release.heavy.version)
    )
    hashed = [3 + xxhash.xxh64_intdigest(key) % 61 for key in (b"key-2", b"key-1")]
    assert light.keys() == {"country", "user_ctr", "watch.ad", "watch.time"}
    assert heavy.keys() == {*light, "device"}
    assert (light["country"], heavy["device"]) == ([3], [2])  # the first of its vocabulary; outside of it
    assert light["watch.ad"] == [hashed[0], 1, hashed[1]]  # most recent first, a missing one between
    assert light["watch.time"][1] == 1
    assert light["user_ctr"] == pytest.approx([0.25])
    event_time_us = (msgspec.convert(EVENT_TIME, type=type(EPOCH)) - EPOCH) // (EPOCH.resolution)
    plain = encode_request(release.tower.query_encoder, query, event_time_us=event_time_us)[0]
    assert sum(map(len, light.values())) == np.count_nonzero(plain.ids) + plain.floats.size


def test_logits_are_those_of_the_probabilities_and_the_order_of_the_answer(snapshot, settings, body):
    candidates = {"ids": [f"{name}-{i}" for i in range(1, 15) for name in ("shopping", "standard")]}
    for scenario, stage in (("shopping", "full"), ("auto", "full"), ("auto", "light")):
        response = answer(body | {"scenario": scenario, "candidates": candidates, "stage": stage}, snapshot, settings)
        explained = response.explain
        for logits, probabilities in (
            (explained.light_logits, response.ads.light),
            (explained.heavy_logits, response.ads.heavy),
        ):
            if probabilities is None:
                assert (logits, stage) == (None, "light")
                continue
            assert logits.keys() == probabilities.keys() == {"click", "conversion"}
            for task, column in logits.items():
                assert [sigmoid(logit) for logit in column] == pytest.approx(probabilities[task], rel=1e-5)


def test_every_candidate_is_told_where_it_fell_out_and_why(own_world, own_settings, body):
    UpdateLog(own_world.root / "updates").append(
        [Update(ad_id="shopping-1", at=0, takedown=True), Update(ad_id="shopping-2", at=0, budget=0.0)]
    )
    app = create_app(own_settings)
    app.state.follower.poll()
    snapshot = app.state.follower.snapshot
    active = [i for i in range(8, 40) if i % 7 and i % 11 != 3 and i % 5 != 4 and i % 13 != 5]
    ids = ["shopping-1", "shopping-2", "shopping-3", "nobody", "standard-1", "shopping-4", "shopping-6", "shopping-6"]
    ids += [f"shopping-{i}" for i in active]
    bids = [-1.0 if ad_id == "shopping-6" else None for ad_id in ids]
    body = body | {"candidates": {"ids": ids, "bids": bids}, "filters": {"exclude_advertisers": ["advertiser-4"]}}
    response = answer(body | {"survivors": 7, "limit": 4}, snapshot, own_settings)
    traced = response.explain.candidates
    assert (traced.ids, traced.omitted) == (ids, 0)
    told = list(zip(traced.ids, traced.stages, traced.reasons, strict=True))
    assert told[:8] == [
        ("shopping-1", "dropped", "takedown"),
        ("shopping-2", "dropped", "budget"),
        ("shopping-3", "dropped", "status"),
        ("nobody", "dropped", "unknown"),
        ("standard-1", "dropped", "scenario"),
        ("shopping-4", "dropped", "filtered"),
        ("shopping-6", "dropped", "bid"),
        ("shopping-6", "dropped", "duplicate"),
    ]
    assert traced.light_utilities[:8] == [None] * 8
    utilities = dict(zip(traced.ids[8:], traced.light_utilities[8:], strict=True))
    survivors = sorted(utilities, key=utilities.get, reverse=True)[:7]
    for ad_id, stage, reason in told[8:]:
        if ad_id in response.ads.ids:
            assert (stage, reason) == ("answer", None)
        elif ad_id in survivors:
            assert (stage, reason) == ("survivor", "limit")
        else:
            assert (stage, reason) == ("light", "survivors")
    assert set(response.ads.ids) < set(survivors)
    assert len(response.ads.ids) == 4
    assert response.dropped.inactive == ids[:3]
    app.state.follower.close()


def test_retrieved_ads_are_told_too_and_long_lists_are_cut(snapshot, settings, body, monkeypatch):
    response = answer(body | {"survivors": 5}, snapshot, settings)
    traced = response.explain.candidates
    assert len(traced.ids) == response.explain.counts["candidates"] > 5
    answered = [ad_id for ad_id, stage in zip(traced.ids, traced.stages, strict=True) if stage == "answer"]
    assert sorted(answered) == sorted(response.ads.ids)
    assert set(traced.stages) == {"light", "answer"}
    utilities = dict(zip(traced.ids, traced.light_utilities, strict=True))
    assert [utilities[ad_id] for ad_id in response.ads.ids] == response.explain.light_utilities
    monkeypatch.setattr(tracing, "MAX_TRACED", 3)
    for candidates in (None, [f"shopping-{i}" for i in range(1, 7)]):
        cut = answer(body | {"candidates": candidates}, snapshot, settings).explain.candidates
        assert len(cut.ids) == len(cut.stages) == len(cut.reasons) == len(cut.light_utilities) == 3
        assert (
            cut.omitted
            == answer(body | {"candidates": candidates}, snapshot, settings).explain.counts["candidates"] - 3
        )
    empty = answer(body | {"candidates": []}, snapshot, settings).explain.candidates
    assert (empty.ids, empty.omitted) == ([], 0)


def test_every_candidate_is_told_its_scores_and_its_places_in_both_orders(snapshot, settings, body):
    ids = [f"{name}-{i}" for i in range(1, 30) for name in ("shopping", "standard", "nobody")]
    body = body | {"scenario": "auto", "candidates": {"ids": ids}, "survivors": 12}
    cut = answer(body | {"limit": 5}, snapshot, settings)
    whole = answer(body, snapshot, settings)
    for response in (cut, whole):
        traced = response.explain.candidates
        rows = dict(zip(traced.ids, range(len(ids)), strict=True))
        scored = [at for at in range(len(ids)) if traced.light_utilities[at] is not None]
        best_first = sorted(scored, key=lambda at: (-traced.light_utilities[at], at))
        assert [traced.light_ranks[at] for at in best_first] == list(range(1, len(scored) + 1))
        assert sorted(filter(None, traced.ranks)) == list(range(1, 13))
        assert [traced.ranks[rows[ad_id]] for ad_id in response.ads.ids] == list(range(1, 1 + len(response.ads.ids)))
        assert [traced.utilities[rows[ad_id]] for ad_id in response.ads.ids] == response.ads.utilities
        assert [traced.light_ranks[rows[ad_id]] for ad_id in response.ads.ids] == response.explain.light_ranks
        for column, shown in ((traced.bids, response.explain.bids), (traced.objectives, response.explain.objectives)):
            assert [column[rows[ad_id]] for ad_id in response.ads.ids] == shown
        for given, shown in ((traced.light, response.ads.light), (traced.heavy, response.ads.heavy)):
            assert {
                task: [column[rows[ad_id]] for ad_id in response.ads.ids] for task, column in given.items()
            } == shown
        for at in set(range(len(ids))) - set(scored):
            columns = (traced.light_ranks, traced.ranks, traced.utilities, traced.bids, traced.objectives)
            assert [column[at] for column in (*columns, *traced.light.values(), *traced.heavy.values())] == [None] * 9
    assert cut.explain.candidates.ranks == whole.explain.candidates.ranks
    assert answer(body | {"stage": "light"}, snapshot, settings).explain.candidates.heavy is None


def test_features_of_ads_and_pairs_are_told_as_the_heavy_ranker_got_them(snapshot, settings, body, monkeypatch):
    ids = [f"shopping-{i}" for i in range(1, 15)]
    affinity = [float(i) if i % 2 else None for i in range(1, 15)]
    sent = {"ids": ids, "affinity": affinity}
    response = answer(body | {"candidates": sent}, snapshot, settings)
    release = snapshot.releases["shopping"]
    report = response.explain.ads[release.heavy.version]
    assert report.ids == response.ads.ids
    assert report.lacking == []
    given = dict(zip(ids, affinity, strict=True))
    assert report.pair == {"affinity": [[given[ad_id] or 0.0] for ad_id in report.ids]}
    rows = release.live.lookup(report.ids)
    held, layout = release.live.heavy(rows), release.heavy.encoders.ad_encoder.layout
    assert report.encoded.keys() == {"ad_key", "tags", "price"}
    for column in layout.bags:
        wide = held.ids[:, column.start : column.start + column.width]
        assert report.encoded[column.name] == [[one for one in row if one] for row in wide.tolist()]
    assert report.encoded["price"] == held.floats.tolist()
    bare = answer(body | {"candidates": ids}, snapshot, settings).explain.ads[release.heavy.version]
    assert (bare.lacking, bare.pair) == (["affinity"], {"affinity": [[0.0]] * len(bare.ids)})
    monkeypatch.setattr(explaining, "MAX_DETAILED", 3)
    cut = answer(body | {"candidates": sent}, snapshot, settings).explain.ads[release.heavy.version]
    assert (cut.ids, len(cut.encoded["price"]), len(cut.pair["affinity"])) == (response.ads.ids[:3], 3, 3)
    assert answer(body | {"candidates": sent, "stage": "light"}, snapshot, settings).explain.ads == {}
    mixed = answer(body | {"scenario": "auto", "candidates": [*ids, "standard-1"]}, snapshot, settings).explain.ads
    assert len(mixed[release.heavy.version].ids) == 3
