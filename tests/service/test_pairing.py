"""A query embedding of one version is never scored against vectors of another, whatever moves while requests run."""

import dataclasses
import threading

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from contracts.bundle import open_bundle
from contracts.rows import encode_request
from indexing.update_record import Content, Update
from service.deadline import Deadline
from service.follower import Follower
from service.ranker import rank
from service.releases import Snapshot
from service.telemetry import Telemetry
from service.wire import decode_request
from towers.serving import TwoTowerServing

SCENARIO, MOMENT_US = "shopping", 1_772_366_400_000_000
TYPES = {"ad_key": pa.string(), "tags": pa.list_(pa.string()), "price": pa.float64()}
TOLERANCE = 5e-3
"""Of a probability: an index rounds vectors to 11 bits, a few of them of size about 3 are summed."""


class Oracle:
    """Light probabilities from the versions that an answer names and the raw features that an ad may have."""

    def __init__(self, artifacts, ads):
        bundles = [open_bundle(artifacts / f"{SCENARIO}-{generation}") for generation in (0, 1)]
        self.towers = {bundle.manifest.version: TwoTowerServing.load(bundle, threads=1) for bundle in bundles}
        self.features = {ad["ad_id"]: [{name: ad[name] for name in TYPES}] for ad in ads.to_pylist()}
        self.gone = set()

    def faults(self, body, response, gone, allowed):
        """Ads of a response that no row of ``allowed`` features explains, or that were ``gone`` when it was asked."""
        tower = self.towers[response.release[SCENARIO].two_tower]
        encoded, _ = encode_request(tower.query_encoder, body["query"], event_time_us=MOMENT_US)
        query, found = tower.embed_query(encoded)[0], []
        for place, ad_id in enumerate(response.ads.ids):
            columns = {name: pa.array([row[name] for row in allowed[ad_id]], kind) for name, kind in TYPES.items()}
            pins = tower.embed_ads(tower.ad_encoder.encode(columns).encoded)
            expected = 1 / (1 + np.exp(-(pins * query).sum(axis=2)))
            got = [response.ads.light[task][place] for task in ("click", "conversion")]
            if ad_id in gone or np.abs(expected - got).max(axis=1).min() > TOLERANCE:
                found.append(ad_id)
        return found


def ask(oracle, snapshot, settings, body):
    """One request on one snapshot; what was allowed while it ran, before and after it."""
    gone, before = set(oracle.gone), {ad_id: list(rows) for ad_id, rows in list(oracle.features.items())}
    request = decode_request(msgspec.json.encode(body))
    response = rank(request, snapshot(), settings, Deadline()).response
    allowed = {ad_id: before.get(ad_id, []) + rows for ad_id, rows in list(oracle.features.items())}
    return len(response.ads.ids), oracle.faults(body, response, gone, allowed)


@pytest.fixture
def oracle(artifacts, own_world):
    return Oracle(artifacts, own_world.ads[SCENARIO])


def make_body(example_query, seed, ids):
    return {
        "scenario": SCENARIO,
        "query": example_query(seed),
        "event_time": "2026-03-01T12:00:00Z",
        "stage": "light",
        "candidates": {"ids": list(ids)},
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_no_answer_mixes_versions_while_releases_and_updates_move(own_world, own_settings, oracle, example_query, seed):
    rng, follower = np.random.default_rng(seed), Follower(own_world.store, own_settings, Telemetry())
    follower.poll()
    stop, answered, faults = threading.Event(), [], []

    def requests(worker):
        number = worker
        while not stop.is_set():
            body = make_body(example_query, number, oracle.features)
            try:
                count, wrong = ask(oracle, lambda: follower.snapshot, own_settings, body)
            except Exception as error:
                faults.append(error)
                return
            answered.append(count)
            faults.extend(wrong)
            number += 2

    threads = [threading.Thread(target=requests, args=(worker,), daemon=True) for worker in range(2)]
    for thread in threads:
        thread.start()
    served = set()
    for step in range(40):
        kind = rng.choice(["publish", "rollback", "takedown", "content"])
        ad_id = f"{SCENARIO}-{int(rng.integers(0, 60))}"
        if kind == "publish":
            own_world.publish(SCENARIO, int(rng.integers(0, 2)))
        elif kind == "rollback" and len(own_world.store.names(SCENARIO)) > 1:
            own_world.store.rollback(SCENARIO, own_world.store.names(SCENARIO)[int(rng.integers(1, 2))])
        elif kind == "takedown":
            own_world.store.append_updates([Update(ad_id=ad_id, at=MOMENT_US + step, takedown=True)])
            follower.apply_updates()
            oracle.gone.add(ad_id)
        elif kind == "content":
            row = {"ad_key": f"new-{step}", "tags": ["t1"], "price": float(rng.uniform(1, 50))}
            oracle.features[ad_id] = [*oracle.features.get(ad_id, []), row]
            content = Content(scenario=SCENARIO, valid_from=MOMENT_US + step, features=row)
            own_world.store.append_updates([Update(ad_id=ad_id, at=MOMENT_US + step, bid=1.0, content=content)])
            follower.apply_updates()
            oracle.features[ad_id] = [row]
        follower.poll()
        served.add(follower.snapshot.releases[SCENARIO].release.two_tower)
    stop.set()
    for thread in threads:
        thread.join()
    follower.close()
    assert not follower.failures
    assert not faults
    assert len(served) == 2
    assert sum(answered) > 100


def test_the_oracle_complains_of_a_tower_of_another_version(own_world, own_settings, oracle, example_query):
    follower = Follower(own_world.store, own_settings, Telemetry())
    follower.poll()
    loaded, body = follower.snapshot.releases[SCENARIO], make_body(example_query, 1, oracle.features)
    other = next(tower for version, tower in oracle.towers.items() if version != loaded.release.two_tower)
    mixed = Snapshot({SCENARIO: dataclasses.replace(loaded, tower=other)})
    count, wrong = ask(oracle, lambda: follower.snapshot, own_settings, body)
    assert (count > 20, wrong) == (True, [])
    count, wrong = ask(oracle, lambda: mixed, own_settings, body)
    assert len(wrong) > count / 2
    follower.close()
