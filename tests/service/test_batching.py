"""Calls of several requests run together, in the limits; every caller gets its own result, or why there is none."""

import threading
import time
import weakref
from concurrent.futures import CancelledError, wait
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batching import Batcher, BatchLimits, QueueFullError
from service.deadline import Deadline, DeadlineError


class Model:
    """Doubles numbers; its first batch waits until it is let go, so that the others gather meanwhile."""

    def __init__(self, *, waits=True):
        self.batches, self.go, self.began = [], threading.Event(), threading.Event()
        if not waits:
            self.go.set()

    def __call__(self, calls):
        self.batches.append(list(calls))
        self.began.set()
        assert self.go.wait(30)
        if "fault" in calls:
            raise ValueError("no number")
        return [2 * call for call in calls]


def gathered(limits, calls, *, threads=1):
    """Let the calls gather behind a first one; the batches after it, and the futures."""
    model = Model()
    with Batcher("a model", model, threads=threads, limits=limits) as batcher:
        batcher.submit("first", 0, rows=1, deadline=Deadline())
        model.began.wait(30)
        futures = [batcher.submit(key, call, rows=rows, deadline=Deadline()) for key, call, rows in calls]
        model.go.set()
        wait(futures, timeout=30)
    return model.batches[1:], futures


def test_calls_of_one_key_that_wait_run_together():
    batches, futures = gathered(BatchLimits(), [("a", 1, 1), ("b", 2, 1), ("a", 3, 1)])
    assert batches == [[1, 3], [2]]
    assert [future.result() for future in futures] == [2, 4, 6]


def test_batches_keep_to_their_limits():
    calls = [("a", number, 10) for number in range(5)]
    assert gathered(BatchLimits(calls=2), calls)[0] == [[0, 1], [2, 3], [4]]
    assert gathered(BatchLimits(rows=30), calls)[0] == [[0, 1, 2], [3, 4]]
    assert gathered(BatchLimits(rows=5), calls)[0] == [[0], [1], [2], [3], [4]]
    assert gathered(BatchLimits(calls=1), calls)[0] == [[0], [1], [2], [3], [4]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(), st.integers(0, 20)), max_size=30),
    st.integers(1, 6),
    st.integers(1, 60),
    st.integers(1, 3),
)
def test_every_call_gets_its_own_result(calls, most, rows, threads):
    batches, futures = gathered(BatchLimits(calls=most, rows=rows), calls, threads=threads)
    assert [future.result() for future in futures] == [2 * call for _, call, _ in calls]
    assert sorted(call for batch in batches for call in batch) == sorted(call for _, call, _ in calls)
    assert all(len(batch) <= most for batch in batches)


def test_a_lone_call_waits_for_others_as_long_as_it_is_told():
    model = Model(waits=False)
    with Batcher("a model", model, threads=1, limits=BatchLimits(calls=2, wait_s=30)) as batcher:
        first = batcher.submit("a", 1, rows=1, deadline=Deadline())
        second = batcher.submit("a", 2, rows=1, deadline=Deadline())  # fills the batch: nobody waits 30 seconds
        assert (first.result(20), second.result(20)) == (2, 4)
    assert model.batches == [[1, 2]]


def test_a_fault_reaches_the_caller_whose_call_it_is_and_no_other():
    batches, futures = gathered(BatchLimits(calls=3), [("a", 1, 1), ("a", "fault", 1), ("a", 2, 1), ("a", 3, 1)])
    with pytest.raises(ValueError, match="no number"):
        futures[1].result()
    assert [future.result() for future in (futures[0], *futures[2:])] == [2, 4, 6]
    assert batches == [[1, "fault", 2], [1], ["fault"], [2], [3]]


def test_what_ran_in_vain_until_its_deadline_does_not_run_again():
    deadline, batches = SimpleNamespace(has_passed=False), []

    def late(calls):
        batches.append(list(calls))
        deadline.has_passed = True
        raise ValueError("no number")

    with Batcher("a model", late, threads=1, limits=BatchLimits(calls=2, wait_s=30)) as batcher:
        futures = [batcher.submit("a", number, rows=1, deadline=deadline) for number in range(2)]
        wait(futures, timeout=30)
    assert batches == [[0, 1]]
    for future in futures:
        with pytest.raises(DeadlineError, match="passed in a model"):
            future.result()


def test_late_and_cancelled_calls_never_run():
    model = Model()
    with Batcher("a model", model, threads=1, limits=BatchLimits()) as batcher:
        batcher.submit("first", 0, rows=1, deadline=Deadline())
        model.began.wait(30)
        late = batcher.submit("a", 1, rows=1, deadline=Deadline(at=time.monotonic() - 1))
        given_up = batcher.submit("a", 2, rows=1, deadline=Deadline())
        in_time = batcher.submit("a", 3, rows=1, deadline=Deadline.after_ms(60_000))
        assert given_up.cancel()
        model.go.set()
        assert in_time.result(30) == 6
    assert model.batches[1:] == [[3]]
    with pytest.raises(DeadlineError, match="passed before a model began"):
        late.result()
    with pytest.raises(CancelledError):
        given_up.result()


def test_a_full_queue_refuses_at_once_and_takes_more_once_there_is_room():
    model = Model()
    with Batcher("a model", model, threads=1, limits=BatchLimits(waiting=2)) as batcher:
        batcher.submit("first", 0, rows=1, deadline=Deadline())
        model.began.wait(30)
        futures = [batcher.submit("a", number, rows=1, deadline=Deadline()) for number in (1, 2)]
        with pytest.raises(QueueFullError, match="calls that wait for a model: 2"):
            batcher.submit("a", 3, rows=1, deadline=Deadline())
        model.go.set()
        assert [future.result(30) for future in futures] == [2, 4]
        assert batcher.submit("a", 3, rows=1, deadline=Deadline()).result(30) == 6


def test_what_waits_is_answered_when_it_stops_and_nothing_is_taken_after():
    model = Model(waits=False)
    with Batcher("a model", model, threads=2, limits=BatchLimits()) as batcher:
        futures = [batcher.submit("a", number, rows=1, deadline=Deadline()) for number in range(50)]
    assert [future.result(0) for future in futures] == [2 * number for number in range(50)]
    with pytest.raises(RuntimeError, match="a model: no thread runs calls"):
        batcher.submit("a", 1, rows=1, deadline=Deadline())


def test_batches_are_told():
    seen = []
    model = Model()
    with Batcher("a model", model, threads=1, limits=BatchLimits(), observe=lambda *told: seen.append(told)) as batcher:
        futures = [batcher.submit("first", 0, rows=1, deadline=Deadline())]
        model.began.wait(30)
        futures += [batcher.submit("a", number, rows=1, deadline=Deadline()) for number in range(3)]
        model.go.set()
        wait(futures, timeout=30)
    assert [calls for calls, _ in seen] == [1, 3]
    assert all(waited_s >= 0 for _, waited_s in seen)


def test_a_model_that_loses_a_result_costs_no_thread():
    """Which result is whose nobody could say, so calls that were together run alone; the thread goes on."""
    batches, go = [], threading.Event()

    def model(calls):
        batches.append(list(calls))
        assert go.wait(30)
        return [2 * call for call in calls if call != 1]

    with Batcher("a model", model, threads=1, limits=BatchLimits()) as batcher:
        futures = [batcher.submit("a", call, rows=1, deadline=Deadline()) for call in (0, 1, 2)]
        go.set()
        wait(futures, timeout=30)
        with pytest.raises(RuntimeError, match="a model: 0 results for 1 calls"):
            futures[1].result()
        assert [futures[0].result(), futures[2].result()] == [0, 4]
        assert batcher.submit("a", 5, rows=1, deadline=Deadline()).result(30) == 10


def test_a_call_is_held_no_longer_than_it_takes():
    class Call:
        pass

    call, ran = Call(), threading.Event()
    reference = weakref.ref(call, lambda _: ran.set())
    limits = BatchLimits(calls=1, rows=1, wait_s=0.0, waiting=8)
    with Batcher("a model", lambda calls: [None for _ in calls], threads=1, limits=limits) as batcher:
        batcher.submit("key", call, rows=1, deadline=Deadline()).result(30)
        del call
        assert ran.wait(30)  # though no other call comes, for which the thread waits
        assert reference() is None
