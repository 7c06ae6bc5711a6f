"""Deadlines and a heavy ranker that is late, broken or absent: the light order stands, and the answer says why."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from service.batching import Batcher, BatchLimits
from service.deadline import Deadline, DeadlineError
from service.heavy import run_calls
from service.heavy_runner import BatchedRunner
from service.ranker import rank
from service.releases import Snapshot
from service.wire import decode_request


@dataclass
class Waiting:
    """A heavy ranker that answers only when it is let go; or that fails; or that returns garbage."""

    inner: Any
    error: Exception | None = None
    garbage: bool = False
    go: threading.Event = field(default_factory=threading.Event)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def score(self, *inputs):
        if self.error:
            raise self.error
        logits = self.inner.score(*inputs)
        if self.garbage:
            return np.full_like(logits, np.nan)
        self.go.wait(20)
        return logits


def with_heavy(snapshot: Snapshot, serving: Any, *scenarios: str) -> Snapshot:
    """The heavy ranker of these scenarios replaced, or taken away where ``serving`` is None."""
    releases = dict(snapshot.releases)
    for scenario in scenarios:
        loaded = releases[scenario]
        heavy = replace(loaded.heavy, serving=serving, version="other") if serving else None
        releases[scenario] = replace(loaded, heavy=heavy)
    return Snapshot(releases)


def body(example_query, **changes):
    ids = [f"{scenario}-{i}" for i in range(1, 7) for scenario in ("shopping", "standard")]
    defaults = {"scenario": "auto", "query": example_query(1), "event_time": "2026-03-01T12:00:00Z", "candidates": ids}
    return decode_request(msgspec.json.encode(defaults | changes))


@contextmanager
def heavy_threads():
    with Batcher("the heavy stage", run_calls, threads=1, limits=BatchLimits()) as batcher:
        yield BatchedRunner(batcher)


def light_order(example_query, snapshot, settings):
    return rank(body(example_query, stage="light"), snapshot, settings, Deadline()).response.ads


def test_a_late_heavy_ranker_leaves_the_light_order(snapshot, settings, example_query):
    waiting = Waiting(snapshot.releases["shopping"].heavy.serving)
    slow = with_heavy(snapshot, waiting, "shopping", "standard")
    with heavy_threads() as runner:
        deadline = Deadline.after_ms(2_000)
        response = rank(body(example_query), slow, settings, deadline, runner=runner).response
        waiting.go.set()
    assert (response.degraded.stage, response.degraded.reason) == ("heavy", "deadline")
    assert response.degraded.detail == "it passed in the heavy stage"
    expected = light_order(example_query, snapshot, settings)
    assert response.ads == expected
    assert response.ads.heavy is None


def test_a_heavy_ranker_in_time_is_used_with_a_deadline(snapshot, settings, example_query):
    with heavy_threads() as runner:
        deadline = Deadline.after_ms(60_000)
        with_deadline = rank(body(example_query), snapshot, settings, deadline, runner=runner).response
    without = rank(body(example_query), snapshot, settings, Deadline()).response
    assert with_deadline.degraded is None
    assert with_deadline.ads == without.ads
    assert without.ads.ids != light_order(example_query, snapshot, settings).ids


@pytest.mark.parametrize(
    ("fault", "detail"),
    [({"error": RuntimeError("out of memory")}, "RuntimeError: out of memory"), ({"garbage": True}, "not finite")],
)
def test_a_broken_heavy_ranker_leaves_the_light_order(snapshot, settings, example_query, fault, detail):
    broken = with_heavy(snapshot, Waiting(snapshot.releases["shopping"].heavy.serving, **fault), "shopping", "standard")
    response = rank(body(example_query), broken, settings, Deadline()).response
    assert response.degraded.reason == "failed"
    assert detail in response.degraded.detail
    assert response.ads == light_order(example_query, snapshot, settings)


def test_one_scenario_without_heavy_ranker_puts_a_mixed_list_in_light_order(snapshot, settings, example_query):
    bare = with_heavy(snapshot, None, "standard")
    response = rank(body(example_query), bare, settings, Deadline()).response
    assert (response.degraded.reason, response.degraded.detail) == (
        "absent",
        "the release of standard has no heavy ranker",
    )
    assert response.ads == light_order(example_query, snapshot, settings)
    only_shopping = rank(body(example_query, scenario="shopping"), bare, settings, Deadline()).response
    assert only_shopping.degraded is None
    assert only_shopping.ads.heavy is not None


def test_nothing_is_computed_after_the_deadline(snapshot, settings, example_query):
    with pytest.raises(DeadlineError, match="passed before the query tower"):
        rank(body(example_query), snapshot, settings, Deadline(at=0.0))


def test_scenarios_with_one_heavy_ranker_share_its_user_side(snapshot, settings, example_query):
    calls = []

    @dataclass
    class Counting:
        inner: Any

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def encode_request(self, query):
            calls.append(len(query))
            return self.inner.encode_request(query)

    counting = with_heavy(snapshot, Counting(snapshot.releases["shopping"].heavy.serving), "shopping", "standard")
    response = rank(body(example_query), counting, settings, Deadline()).response
    assert calls == [1]
    assert response.ads == rank(body(example_query), snapshot, settings, Deadline()).response.ads
