"""Ranking equals a slow reference that goes through the candidates one at a time, over random requests and policies."""

import math
from dataclasses import dataclass

import msgspec
import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import numpy_helper

from contracts import compiled
from contracts.encoding import Encoder
from contracts.rows import encode_pairs, encode_request
from service.deadline import Deadline
from service.heavy_runner import DirectRunner
from service.media import JSON, MSGPACK
from service.query_towers import embed_together
from service.ranker import light_stage, rank
from service.releases import Snapshot
from service.request_inputs import EPOCH
from service.settings import Settings
from service.wire import decode_request, encode_response

MICROS = 1_000_000


def answer(body: dict, snapshot: Snapshot, settings: Settings):
    return rank(decode_request(msgspec.json.encode(body)), snapshot, settings, Deadline()).response


class SharedCalls:
    """Query towers that run with the rows of other requests."""

    def embed(self, releases, queries, deadline):
        pairs = [(loaded.tower, query) for loaded, query in zip(releases, queries, strict=True)]
        nobody = [(tower, tower.query_rows.encode({}, event_time_us=0).encoded) for tower, _ in pairs]
        return [embed_together([one, own, one])[1] for own, one in zip(pairs, nobody, strict=True)]


def answer_by(way: str, body: dict, snapshot: Snapshot, settings: Settings):
    """By one of the ways in which a request may be ranked."""
    if way != "shared calls":
        with pytest.MonkeyPatch.context() as patch:
            if way == "numpy":
                patch.setattr(compiled, "_loaded", None)
            return answer(body, snapshot, settings)
    request = decode_request(msgspec.json.encode(body))
    underway = light_stage(request, snapshot, settings, Deadline(), towers=SharedCalls())
    underway.start_heavy(DirectRunner())
    return underway.finish().response


# The reference: plain Python over one candidate after another.


@dataclass
class Reference:
    """Ranks from what the artifacts hold: index vectors, graph weights, encoders, raw ads."""

    world: object
    artifacts: object
    snapshot: Snapshot
    settings: Settings

    def __post_init__(self):
        self.rows = {
            name: {ad_id: row for row, ad_id in enumerate(loaded.index.id_table.ids(np.arange(len(loaded.index.bids))))}
            for name, loaded in self.snapshot.releases.items()
        }
        self.raw = {name: {ad["ad_id"]: ad for ad in table.to_pylist()} for name, table in self.world.ads.items()}
        graphs = [onnx.load(self.artifacts / "heavy" / f"{name}.onnx") for name in ("request", "ads")]
        self.weights = {t.name: numpy_helper.to_array(t) for graph in graphs for t in graph.graph.initializer}

    def rank(self, body: dict):
        """(ids, utilities, light, heavy or None, dropped) of a request with candidates."""
        settings = self.settings
        candidates = body["candidates"]
        columns = candidates if isinstance(candidates, dict) else {"ids": candidates}
        ids = columns["ids"]
        auto = body["scenario"] == "auto"
        scenarios = sorted(self.snapshot.releases) if auto else [body["scenario"]]
        excluded = body.get("filters", {}).get("exclude_advertisers", [])
        dropped = {name: [] for name in ("unknown", "inactive", "filtered", "duplicate", "bid", "scenario")}
        kept, seen = [], set()
        for position, ad_id in enumerate(ids):
            if ad_id in seen:
                dropped["duplicate"].append(ad_id)
                continue
            seen.add(ad_id)
            scenario = next((name for name in scenarios if ad_id in self.rows[name]), None)
            if scenario is None:
                if any(ad_id in rows for rows in self.rows.values()):
                    dropped["scenario"].append(ad_id)
                    continue
                if settings.unknown_ads == "drop" or auto:
                    dropped["unknown"].append(ad_id)
                    continue
            ad = self.raw[scenario][ad_id] if scenario else {}
            if ad.get("status") == "paused" and settings.inactive_ads == "drop":
                dropped["inactive"].append(ad_id)
                continue
            if ad.get("advertiser_id") in excluded:
                dropped["filtered"].append(ad_id)
                continue
            bid = columns.get("bids", [None] * len(ids))[position]
            if bid is None and ad.get("bid") is not None:
                bid = float(np.float32(ad["bid"]))  # as the index holds it
            if bid is not None and (bid < 0 or not math.isfinite(bid)):
                dropped["bid"].append(ad_id)
                continue
            objective = columns.get("objectives", [None] * len(ids))[position] or ad.get("objective") or "click"
            kept.append([position, ad_id, scenario, scenario or scenarios[0], ad, bid, objective])
        bids = [entry[5] for entry in kept if entry[5] is not None]
        if len(bids) < len(kept):
            if not bids or settings.missing_bids == "median":
                stand_in = 1.0 if not bids else float(np.median(bids))
                for entry in kept:
                    entry[5] = stand_in if entry[5] is None else entry[5]
            else:
                dropped["bid"] = [
                    ad_id
                    for ad_id in dict.fromkeys(ids)
                    if ad_id in dropped["bid"] or any(e[1] == ad_id and e[5] is None for e in kept)
                ]
                kept = [entry for entry in kept if entry[5] is not None]
        light = {position: self.light(body, owner, ad_id, known) for position, ad_id, known, owner, *_ in kept}
        order = sorted(kept, key=lambda e: (-self.utility(e, light[e[0]]), e[0]))[: body.get("survivors", 100)]
        heavy = None
        if body.get("stage", "full") == "full" and kept:
            heavy = {entry[0]: self.heavy(body, entry, columns) for entry in order}
            light_order = [entry[0] for entry in order]
            order.sort(key=lambda e: (-self.utility(e, heavy[e[0]]), light_order.index(e[0])))
        order = order[: body.get("limit", len(order))]
        final = heavy or light
        return (
            [entry[1] for entry in order],
            [self.utility(entry, final[entry[0]]) for entry in order],
            [light[entry[0]] for entry in order],
            [heavy[entry[0]] for entry in order] if heavy else None,
            dropped,
        )

    @staticmethod
    def utility(entry, probabilities):
        *_, bid, objective = entry
        return bid * {"impression": 1.0, "click": probabilities[0], "conversion": probabilities[1]}[objective]

    def light(self, body, owner, ad_id, known):
        loaded = self.snapshot.releases[owner]
        encoded, _ = encode_request(loaded.tower.query_encoder, body["query"], event_time_us=moment(body))
        query = loaded.tower.embed_query(encoded)[0].astype(np.float64)
        if known:
            row = self.rows[owner][ad_id]
            vector = loaded.index.vectors[row].astype(np.float64).reshape(len(query), -1)
            bias = loaded.index.bias[row].astype(np.float64)
        else:
            pin = loaded.tower.embed_ads(self.encode_ad(loaded.tower.ad_encoder, {}))[0]
            vector = pin[:, :-2].astype(np.float64)  # of no index, so not rounded
            bias = pin[:, -2]
        width = vector.shape[1]
        logits = [
            sum(query[h, d] * vector[h, d] for d in range(width)) + query[h, width] * bias[h] + query[h, width + 1]
            for h in range(len(query))
        ]
        return [1 / (1 + math.exp(-logit)) for logit in logits]

    def heavy(self, body, entry, columns):
        position, _, _, owner, ad, *_ = entry
        heavy = self.snapshot.releases[owner].heavy
        tables = heavy_tables(self.artifacts)
        query, _ = encode_request(heavy.serving.query_encoder, body["query"], event_time_us=moment(body))
        ad_row = self.encode_ad(heavy.serving.ad_encoder, ad)
        affinity = columns.get("affinity", [None] * len(columns["ids"]))[position]
        pair = encode_pairs(heavy.serving.pair_encoder, {"affinity": [affinity]}, 1).encoded
        weights, layout = self.weights, heavy.serving.query_encoder.layout
        watched, num_events = np.zeros(layout.sequences[0].dim), 0
        for place in range(layout.sequences[0].max_length):
            event = [query.ids[0, field.start + place] for field in layout.sequences[0].fields]
            if event[0]:
                num_events += 1
                fields = zip(layout.sequences[0].fields, event, strict=True)
                watched += np.concatenate([tables[f"tables.{field.table}"][id_] for field, id_ in fields])
        user = flat(layout, tables, query) @ weights["user_weight"] + watched @ weights["watch_weight"]
        crossed = user * (flat(heavy.serving.ad_encoder.layout, tables, ad_row) @ weights["ad_weight"])
        logits = crossed @ weights["task_weight"] + pair.floats[0] @ weights["pair_weight"]
        logits += num_events * weights["event_weight"][0]
        return [1 / (1 + math.exp(-logit)) for logit in logits]

    @staticmethod
    def encode_ad(encoder: Encoder, ad: dict):
        types = {"ad_key": pa.string(), "tags": pa.list_(pa.string()), "price": pa.float64()}
        columns = {name: pa.array([ad.get(name)], kind) for name, kind in types.items()}
        return encoder.encode(columns).encoded


def flat(layout, tables, encoded):
    """Floats, then the mean embedding of each bag."""
    pieces = [encoded.floats[0]]
    for bag in layout.bags:
        picked = [tables[f"tables.{bag.table}"][i] for i in encoded.ids[0, bag.start : bag.start + bag.width] if i]
        pieces.append(np.mean(picked, axis=0) if picked else np.zeros(bag.dim))
    return np.concatenate(pieces)


def heavy_tables(artifacts):
    from contracts.bundle import open_bundle

    return open_bundle(artifacts / "heavy", verify=False).tensors()


def moment(body):
    from datetime import datetime

    return int((datetime.fromisoformat(body["event_time"]) - EPOCH).total_seconds()) * MICROS


def random_body(rng: np.random.Generator, world, query) -> dict:
    """A request with a mix of known, foreign, unknown and repeated ads, and random options."""
    pools = [table["ad_id"].to_pylist() for table in world.ads.values()] + [["nobody", "", "幽霊", "a\0b", 300 * "x"]]
    ids = [str(rng.choice(pools[rng.choice(3, p=(0.45, 0.45, 0.1))])) for _ in range(rng.integers(0, 40))]
    body = {
        "scenario": str(rng.choice(["shopping", "standard", "auto"])),
        "query": query,
        "event_time": "2026-03-01T12:00:00+00:00",
        "stage": str(rng.choice(["full", "light"])),
        "candidates": ids,
    }
    if rng.random() < 0.7:
        columns = {"ids": ids}
        if rng.random() < 0.7:
            columns["bids"] = [None if rng.random() < 0.3 else float(rng.uniform(-0.2, 2)) for _ in ids]
        if rng.random() < 0.5:
            choices = [None, "impression", "click", "conversion"]
            columns["objectives"] = [choices[i] for i in rng.integers(0, 4, len(ids))]
        if rng.random() < 0.6:
            columns["affinity"] = [None if rng.random() < 0.2 else float(rng.normal()) for _ in ids]
        body["candidates"] = columns
    if rng.random() < 0.4:
        body["filters"] = {"exclude_advertisers": ["advertiser-1", "advertiser-none"]}
    if rng.random() < 0.5:
        body["survivors"] = int(rng.integers(1, 20))
    if rng.random() < 0.5:
        body["limit"] = int(rng.integers(1, 30))
    return body


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 125))]
"""Of eight requests each, a thousand in all."""
WAYS = ("as usual", "numpy", "shared calls")


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_equal_the_reference(seed, world, artifacts, snapshot, settings, example_query):
    rng = np.random.default_rng(seed)
    policies = {
        "unknown_ads": str(rng.choice(["drop", "score"])),
        "inactive_ads": str(rng.choice(["drop", "rank"])),
        "missing_bids": str(rng.choice(["drop", "median"])),
    }
    settings = settings.model_copy(update=policies)
    reference = Reference(world, artifacts, snapshot, settings)
    for number in range(8):
        body = random_body(rng, world, example_query(number))
        response = answer_by(WAYS[seed % len(WAYS)], body, snapshot, settings)
        ids, utilities, light, heavy, dropped = reference.rank(body)
        assert response.ads.ids == ids, body
        np.testing.assert_allclose(response.ads.utilities, utilities, rtol=2e-5)
        assert msgspec.structs.asdict(response.dropped) == dropped
        for media, decode in ((JSON, msgspec.json.decode), (MSGPACK, msgspec.msgpack.decode)):
            told = decode(encode_response(response, media))
            assert (told["ads"]["ids"], told["dropped"]) == (ids, dropped)
        assert_columns(response.ads.light, light)
        assert (response.ads.heavy is None) == (heavy is None)
        if heavy is not None:
            assert_columns(response.ads.heavy, heavy)
        assert response.degraded is None


def assert_columns(columns, rows):
    np.testing.assert_allclose(np.transpose([columns["click"], columns["conversion"]]), np.reshape(rows, (-1, 2)), 2e-5)


def test_an_index_that_is_too_old_is_told_of(snapshot, settings):
    body = {"scenario": "shopping", "query": {"country": "DE"}, "candidates": []}
    assert answer(body, snapshot, settings.model_copy(update={"max_index_age_h": 87_600.0})).warnings == []
    (warning,) = answer(body, snapshot, settings.model_copy(update={"max_index_age_h": 0.001})).warnings
    watermark = snapshot.releases["shopping"].index.manifest.watermark
    assert warning == f"the index of shopping is of {watermark}, older than 0.001 hours (max_index_age_h)"
