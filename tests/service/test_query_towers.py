"""Query towers of several requests in one call: the same answers, within the limits, where it pays."""

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.batch_trials import heavy_gain, with_trial, with_trials
from service.batching import Batcher, BatchLimits, QueueFullError
from service.deadline import Deadline, DeadlineError
from service.heavy_runner import BatchedRunner
from service.query_towers import BatchedTowers, DirectTowers, embed_together
from service.settings import Settings
from service.warmup import warm_up

TOLERANCE = 1e-5
"""Of an embedding, relative above 1: a product of several rows may sum in another order than that of one."""


@pytest.fixture
def loaded(snapshot):
    return {name: dataclasses.replace(one, batches_queries=True) for name, one in snapshot.releases.items()}


def towers_of(settings, observe=lambda requests, waited_s: None, *, clock=time.perf_counter, **changes):
    return BatchedTowers(settings.model_copy(update={"rank_threads": 4} | changes), observe, clock=clock)


def encoded(loaded, query):
    return loaded.tower.query_rows.encode(query, event_time_us=1_772_366_400_000_000).encoded


class Held:
    """A tower that waits until it is let go, so that requests gather."""

    def __init__(self, tower):
        self._tower, self.go, self.began = tower, threading.Event(), threading.Event()
        self.sizes = []

    def embed_query(self, query):
        self.sizes.append(len(query))
        self.began.set()
        assert self.go.wait(30)
        return self._tower.embed_query(query)


def test_requests_together_get_what_each_gets_alone(loaded, settings, example_query):
    rows = [encoded(loaded["standard"], example_query(seed)) for seed in range(20)]
    found = embed_together([(loaded["standard"].tower, row) for row in rows])
    for row, embedding in zip(rows, found, strict=True):
        alone = DirectTowers().embed([loaded["standard"]], [row], Deadline())[0]
        np.testing.assert_allclose(embedding, alone, rtol=TOLERANCE, atol=TOLERANCE)


def test_threads_share_calls_and_each_gets_its_own_embeddings(loaded, settings, example_query):
    both, seen = [loaded["shopping"], loaded["standard"]], []
    queries = [[encoded(one, example_query(seed)) for one in both] for seed in range(60)]
    batched = towers_of(settings, lambda *told: seen.append(told), query_batch=8)
    with batched as towers, ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda asked: towers.embed(both, asked, Deadline()), queries))
    for asked, embeddings in zip(queries, found, strict=True):
        for alone, embedding in zip(DirectTowers().embed(both, asked, Deadline()), embeddings, strict=True):
            np.testing.assert_allclose(embedding, alone, rtol=TOLERANCE, atol=TOLERANCE)
    assert sum(requests for requests, _ in seen) == 120
    assert max(requests for requests, _ in seen) <= 8


def test_waiting_requests_run_in_one_call_of_at_most_so_many(loaded, settings, example_query):
    one = loaded["standard"]
    held = Held(one.tower)
    slow = dataclasses.replace(one, tower=held)
    row = encoded(one, example_query(1))
    with towers_of(settings, query_batch=3) as towers, ThreadPoolExecutor(6) as pool:
        first = pool.submit(towers.embed, [slow], [row], Deadline())
        assert held.began.wait(30)
        others = [pool.submit(towers.embed, [slow], [row], Deadline()) for _ in range(5)]
        while len(towers._batcher) < 5:
            pass
        held.go.set()
        for future in (first, *others):
            np.testing.assert_allclose(future.result(30)[0], one.tower.embed_query(row)[0], rtol=TOLERANCE)
    assert held.sizes == [1, 3, 2]


def test_a_deadline_ends_the_wait_and_a_full_queue_refuses_at_once(loaded, settings, example_query):
    one = loaded["standard"]
    held = Held(one.tower)
    slow, row = dataclasses.replace(one, tower=held), encoded(one, example_query(1))
    with towers_of(settings, query_queue=1) as towers, ThreadPoolExecutor(2) as pool:
        first = pool.submit(towers.embed, [slow], [row], Deadline())
        assert held.began.wait(30)
        with pytest.raises(DeadlineError, match="the deadline passed in the query tower"):
            towers.embed([slow], [row], Deadline.after_ms(20))  # its place in the queue is held until the thread comes
        with pytest.raises(QueueFullError, match="calls that wait for the query tower: 1"):
            towers.embed([slow], [row], Deadline())
        held.go.set()
        assert len(first.result(30)) == 1
    assert held.sizes == [1]  # the late one never ran


@pytest.mark.parametrize(
    ("threads", "choice", "gain", "wanted"),
    [
        (0, "on", 0, True),
        (0, "off", 9, False),
        (0, "auto", 1.0, False),
        (0, "auto", 1.2, True),
        (1, "on", 9, False),
        (2, "on", 0, True),
        (2, "off", 9, False),
        (2, "auto", 1.0, False),
        (2, "auto", 1.2, True),
    ],
)
def test_it_is_used_where_it_pays_or_where_the_settings_say(
    loaded, settings, monkeypatch, threads, choice, gain, wanted
):
    towers = towers_of(settings, rank_threads=threads, query_batching=choice)
    monkeypatch.setattr(towers, "gain", lambda tower: gain)
    assert towers.pays(loaded["standard"].tower) is wanted


class Costly:
    """A tower with an engine that runs one call at a time, on a clock of its own: so long for a call, and for a row."""

    def __init__(self, tower, *, call_s, row_s):
        self.query_encoder, self._lock, self._call_s, self._row_s = tower.query_encoder, threading.Lock(), call_s, row_s
        self.now = 0.0

    def embed_query(self, query):
        with self._lock:
            self.now += self._call_s + self._row_s * len(query)
        return np.zeros((len(query), 2, 6), np.float32)


@pytest.mark.parametrize("threads", [0, 4])
@pytest.mark.parametrize(("call_s", "row_s", "gain"), [(1.0, 0.0, 4.0), (0.0, 1.0, 1.0), (1.0, 1.0, 1.6)])
def test_the_trial_tells_an_engine_that_gains_from_one_that_does_not(loaded, settings, threads, call_s, row_s, gain):
    costly = Costly(loaded["standard"].tower, call_s=call_s, row_s=row_s)
    changes = {"rank_threads": threads, "query_batch": 4, "query_batch_wait_ms": 1_000.0}  # a batch waits for all four
    towers = towers_of(settings, clock=lambda: costly.now, **changes)
    if threads == 0:  # two take a turn together
        gain = (2 * (call_s + row_s)) / (call_s + 2 * row_s)
    assert towers.gain(costly) == pytest.approx(gain)


def test_requests_of_a_turn_share_a_call_for_each_tower(loaded, settings, example_query):
    both, seen = [loaded["shopping"], loaded["standard"]], []
    alone_only = dataclasses.replace(loaded["shopping"], batches_queries=False)
    asked = [
        (releases, [encoded(one, example_query(seed)) for one in releases])
        for seed, releases in enumerate([both, both[1:], [alone_only, both[1]], both, both[:1], both[1:]])
    ]
    towers = towers_of(settings, lambda *told: seen.append(told), rank_threads=0, query_batch=4)
    found = towers.embed_all(asked, 0.5)
    for (releases, queries), embeddings in zip(asked, found, strict=True):
        for alone, embedding in zip(DirectTowers().embed(releases, queries, Deadline()), embeddings, strict=True):
            np.testing.assert_allclose(embedding, alone, rtol=TOLERANCE, atol=TOLERANCE)
    assert sorted(seen) == [(1, 0.5), (3, 0.5), (4, 0.5)]


def test_the_heavy_ranker_takes_requests_together_only_where_it_pays(snapshot, settings, monkeypatch):
    heavy = dataclasses.replace(snapshot.releases["standard"].heavy, batches=None)
    assert heavy_gain(heavy, 20, 4) > 0
    auto = settings.model_copy(update={"heavy_batching": "auto"})
    for gain, wanted in [(1.0, False), (1.1, False), (1.3, True)]:
        monkeypatch.setattr("service.batch_trials.heavy_gain", lambda *_, gain=gain: gain)
        assert with_trial(heavy, auto).batches is wanted
    assert with_trial(heavy, settings.model_copy(update={"heavy_batching": "off"})).batches is False
    assert with_trial(heavy, settings.model_copy(update={"heavy_batch": 1})).batches is False


def test_what_was_found_of_a_shape_holds_for_the_next_release_of_it(snapshot, settings, monkeypatch):
    def no_trial(*_):
        raise AssertionError("tried again")

    auto = settings.model_copy(update={"heavy_batching": "auto", "rank_threads": 4})
    before = snapshot.releases["standard"]
    assert before.tower_shape
    assert before.heavy.shape
    monkeypatch.setattr("service.batch_trials.heavy_gain", no_trial)
    monkeypatch.setattr(BatchedTowers, "gain", no_trial)
    untried = dataclasses.replace(before, heavy=dataclasses.replace(before.heavy, version="v2", batches=None))
    for batches in (True, False):
        serving = dataclasses.replace(
            before, batches_queries=batches, heavy=dataclasses.replace(before.heavy, batches=not batches)
        )
        found = with_trials(untried, auto, towers_of(auto), [serving])
        assert (found.batches_queries, found.heavy.batches, found.heavy.version) == (batches, not batches, "v2")
    other = dataclasses.replace(serving, tower_shape="wider", heavy=dataclasses.replace(serving.heavy, shape="deeper"))
    with pytest.raises(AssertionError, match="tried again"):
        with_trials(untried, auto, towers_of(auto), [other])
    with pytest.raises(AssertionError, match="tried again"):
        with_trials(untried, auto, towers_of(auto), [dataclasses.replace(serving, heavy=other.heavy)])


@pytest.mark.parametrize("batches", [True, False])
def test_heavy_calls_share_a_batch_only_where_it_pays(snapshot, settings, batches):
    sizes, began, go = [], threading.Event(), threading.Event()
    heavy = dataclasses.replace(snapshot.releases["standard"].heavy, batches=batches)

    def run(calls):
        sizes.append(len(calls))
        began.set()
        assert go.wait(30)
        return [np.zeros(1) for _ in calls]

    call = type("Call", (), {"heavy": heavy, "ads": [0]})()
    limits = BatchLimits(calls=4, wait_s=0.0 if batches else 30.0)  # what runs alone waits for nobody
    with Batcher("the heavy stage", run, threads=1, limits=limits) as batcher:
        runner = BatchedRunner(batcher)
        futures = [runner.submit(call, Deadline())]
        assert began.wait(30)
        futures += [runner.submit(call, Deadline()) for _ in range(4)]
        go.set()
        for future in futures:
            future.result(20)
    assert sizes == ([1, 4] if batches else [1] * 5)


def test_batches_of_every_size_run_before_a_release_serves(loaded, settings, monkeypatch):
    one, sizes = loaded["standard"], {"query": [], "heavy": []}
    monkeypatch.setattr("service.batch_trials.embed_together", lambda rows: sizes["query"].append(len(rows)))
    monkeypatch.setattr("service.batch_trials.run_calls", lambda calls: sizes["heavy"].append(len(calls)))
    limits = settings.model_copy(
        update={"query_batch": 6, "heavy_batch": 16, "survivors": 100, "heavy_batch_rows": 900}
    )
    heavy = dataclasses.replace(one.heavy, batches=True)
    warm_up(dataclasses.replace(one, heavy=heavy), limits)
    assert sizes == {"query": [2, 4, 6], "heavy": [2, 4, 8, 9]}
    heavy = dataclasses.replace(one.heavy, batches=False)
    warm_up(dataclasses.replace(one, heavy=heavy, batches_queries=False), limits)
    assert sizes == {"query": [2, 4, 6], "heavy": [2, 4, 8, 9]}


def test_over_http_answers_are_the_same_and_batches_are_told(world, settings: Settings, example_query):
    ids = world.ads["standard"]["ad_id"].to_pylist()[:200]
    bodies = [
        {"scenario": "standard", "query": example_query(seed), "candidates": ids, "stage": "light", "survivors": 20}
        | {"event_time": "2026-03-01T12:00:00Z", "request_id": str(seed)}
        for seed in range(24)
    ]
    answers = {}
    for choice in ("on", "off"):
        changed = settings.model_copy(update={"rank_threads": 4, "query_batching": choice})
        with TestClient(create_app(changed)) as client, ThreadPoolExecutor(4) as pool:
            while not client.get("/health/ready").json()["ready"]:
                pass
            answers[choice] = [
                answer.json() for answer in pool.map(lambda body: client.post("/rank", json=body), bodies)
            ]
            lines = [line.rpartition(" ") for line in client.get("/metrics").text.splitlines()]
            metrics = {name: float(value) for name, _, value in lines if not name.startswith("#")}
        on = choice == "on"
        assert metrics['adsieve_batching{model="query_tower",scenario="standard"}'] == on
        assert metrics["adsieve_query_batch_requests_sum"] == (24 if on else 0)
    for together, alone in zip(answers["on"], answers["off"], strict=True):
        assert together["ads"]["ids"] == alone["ads"]["ids"]
        np.testing.assert_allclose(together["ads"]["utilities"], alone["ads"]["utilities"], rtol=1e-5)
