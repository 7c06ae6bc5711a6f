"""Calls of many threads travel together, and each gets its own answer."""

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from service.api import Problem, RankRequest
from service.app import create_app
from service.client import RankClient
from service.client_errors import BusyError, LateError, ProblemError, UnreachableError
from service.client_grouping import GroupingClient
from service.deadline import Deadline
from service.ranker import rank


def request(example_query, number=1, **changes):
    defaults = {
        "request_id": f"r-{number}",
        "scenario": "shopping",
        "query": example_query(number),
        "event_time": "2026-03-01T12:00:00Z",
        "candidates": [f"shopping-{number % 20 + offset}" for offset in range(15)],
    }
    return msgspec.convert(defaults | changes, RankRequest)


class Recording:
    """A client that notes its calls: how many requests each held, and in how much time."""

    def __init__(self, client):
        self._client, self.timeout_s = client, client.timeout_s
        self.sizes, self.timeouts = [], []

    def rank(self, request, *, timeout_s):
        self.sizes.append(1)
        self.timeouts.append(timeout_s)
        return self._client.rank(request, timeout_s=timeout_s)

    def rank_batch(self, requests, *, timeout_s):
        self.sizes.append(len(requests))
        self.timeouts.append(timeout_s)
        return self._client.rank_batch(requests, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def url(settings, servers):
    app = create_app(settings.model_copy(update={"max_batch": 8}))
    app.state.follower.poll()
    with servers.serving(app) as url:
        yield url


@pytest.fixture
def recording(url):
    with RankClient(url, timeout_s=60.0) as client:
        yield Recording(client)


def ask_all(grouping, requests, num_threads, **options):
    """The answer or error of each, all asked by threads that begin at the same moment."""
    barrier = threading.Barrier(num_threads)

    def ask(first):
        barrier.wait()
        outcomes = []
        for one in requests[first::num_threads]:
            try:
                outcomes.append((one, grouping.rank(one, **options)))
            except Exception as error:
                outcomes.append((one, error))
        return outcomes

    with ThreadPoolExecutor(num_threads) as threads:
        return [outcome for part in threads.map(ask, range(num_threads)) for outcome in part]


def test_each_thread_gets_its_own_answer(recording, snapshot, settings, example_query):
    requests = [
        request(example_query, number, **({"scenario": f"none-{number}"} if number % 9 == 4 else {}))
        for number in range(120)
    ]
    with GroupingClient(recording, group_wait_s=0.005, group_size=6) as grouping:
        outcomes = ask_all(grouping, requests, 12)
    assert len(outcomes) == 120
    for one, outcome in outcomes:
        if one.scenario.startswith("none-"):
            assert isinstance(outcome, ProblemError)
            assert (outcome.field, one.scenario in outcome.detail) == ("scenario", True)
        else:
            expected = rank(one, snapshot, settings, Deadline()).response
            assert msgspec.structs.replace(outcome, timing_ms=expected.timing_ms) == expected
    assert sum(recording.sizes) == 120
    assert max(recording.sizes) <= 6
    assert len(recording.sizes) < 100


def test_what_is_asked_within_the_window_is_one_call_and_a_lone_request_is_not_a_batch(recording, example_query):
    with GroupingClient(recording, group_wait_s=60.0, group_size=5) as grouping:
        ask_all(grouping, [request(example_query, number) for number in range(5)], 5)
    assert recording.sizes == [5]
    with GroupingClient(recording, group_wait_s=0.0) as grouping:
        assert grouping.rank(request(example_query)).request_id == "r-1"
    assert recording.sizes == [5, 1]


def test_a_group_that_the_service_does_not_take_is_asked_one_by_one(recording, example_query):
    with GroupingClient(recording, group_wait_s=60.0, group_size=9, threads=1) as grouping:
        outcomes = ask_all(grouping, [request(example_query, number) for number in range(9)], 9)
    assert recording.sizes == [9, *[1] * 9]  # max_batch is 8
    assert all(outcome.request_id == one.request_id for one, outcome in outcomes)


def test_one_that_cannot_be_sent_costs_the_others_nothing(recording, example_query):
    bad = msgspec.structs.replace(request(example_query), query={"country": object()})
    with GroupingClient(recording, group_wait_s=60.0, group_size=4) as grouping:
        outcomes = ask_all(grouping, [bad, *(request(example_query, number) for number in range(3))], 4)
    told = {one.request_id if one is not bad else "bad": outcome for one, outcome in outcomes}
    assert isinstance(told.pop("bad"), TypeError)
    assert {name: outcome.request_id for name, outcome in told.items()} == {f"r-{n}": f"r-{n}" for n in range(3)}


def test_very_different_deadlines_do_not_travel_together_and_the_earliest_of_a_group_counts(recording, example_query):
    with (
        GroupingClient(recording, group_wait_s=60.0, group_size=2) as grouping,
        ThreadPoolExecutor(4) as threads,
    ):
        timeouts = (50.0, 45.0, 20.0, 18.0)
        asked = [threads.submit(grouping.rank, request(example_query), timeout_s=timeout_s) for timeout_s in timeouts]
        assert [future.result().request_id for future in asked] == ["r-1"] * 4
    assert sorted(recording.sizes) == [2, 2]
    assert min(recording.timeouts) <= 18
    assert max(recording.timeouts) <= 45


class Failing:
    """A client whose calls fail, or hang until told to go on."""

    timeout_s = 60.0

    def __init__(self, error, go=None):
        self._error, self._go = error, go
        self.began = threading.Event()

    def rank_batch(self, requests, *, timeout_s):
        self.began.set()
        if self._go is not None:
            self._go.wait(60)
        raise self._error

    def rank(self, request, *, timeout_s):
        return self.rank_batch([request], timeout_s=timeout_s)


def test_what_a_group_fails_with_all_its_callers_are_told(example_query):
    busy = Problem(type="urn:adsieve:problem:overloaded", title="Busy", status=503, detail="full")
    for error in (ProblemError(busy), UnreachableError("gone"), LateError("late")):
        with GroupingClient(Failing(error), group_wait_s=60.0, group_size=3) as grouping:
            outcomes = ask_all(grouping, [request(example_query)] * 3, 3)
        assert [outcome for _, outcome in outcomes] == [error] * 3


def test_a_caller_waits_no_longer_than_its_deadline_and_only_so_many_wait(example_query):
    go = threading.Event()
    client = Failing(UnreachableError("gone"), go)
    with GroupingClient(client, group_wait_s=0.0, threads=1, waiting=1) as grouping, ThreadPoolExecutor(2) as threads:
        first = threads.submit(grouping.rank, request(example_query))
        client.began.wait(60)
        with pytest.raises(LateError, match="not answered within 50 ms"):
            grouping.rank(request(example_query), timeout_s=0.05)  # waits in the queue
        with pytest.raises(BusyError, match="calls that wait for .*: 1$"):
            grouping.rank(request(example_query))
        with pytest.raises(LateError):
            grouping.rank(request(example_query), timeout_s=0.0)
        go.set()
        with pytest.raises(UnreachableError, match="gone"):
            first.result(60)
    with pytest.raises(RuntimeError, match="has not begun or is over"):
        grouping.rank(request(example_query))
