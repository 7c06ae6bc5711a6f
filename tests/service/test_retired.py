"""What serves no longer is freed by the thread that follows the store; readiness tells what still loads."""

import dataclasses
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from service import retired
from service.follower import Follower
from service.memory import settle
from service.releases import Snapshot
from service.retired import Retired
from service.status import readiness
from service.telemetry import Telemetry


@pytest.fixture
def follower(own_world, own_settings):
    return Follower(own_world.store, own_settings, Telemetry())


@pytest.fixture
def no_collection():
    """What is freed is freed by whoever lets it go, and not by a collection that comes by."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(loaded, ended):
    """References to what is costly of a release; ``ended`` gains the name and the thread of each that is freed."""
    parts = {"index": loaded.index, "tower": loaded.tower}
    parts |= {f"engine {at}": engine for at, engine in enumerate(loaded.tower.engines)}
    return {
        name: weakref.ref(part, lambda _, name=name: ended.append((name, threading.get_ident())))
        for name, part in parts.items()
    }


def test_a_release_that_a_request_takes_last_ends_where_the_store_is_followed(follower, own_world, no_collection):
    ended = []
    follower.poll()
    gc.collect()  # what compiles kernels, where none are kept, leaves cycles
    request = follower.snapshot.releases["shopping"]
    references = watched(request, ended)
    own_world.publish("shopping", 1)
    follower.poll()
    assert follower.snapshot.releases["shopping"] is not request
    follower.poll()
    assert ended == []
    request = None
    assert ended == []  # a request that ends frees nothing of it
    with ThreadPoolExecutor(1) as pool:
        pool.submit(follower.poll).result()
        following = pool.submit(threading.get_ident).result()
    assert sorted(ended) == sorted((name, following) for name in references)


def test_a_heavy_ranker_goes_with_the_last_release_that_has_it(snapshot):
    heavy = dataclasses.replace(snapshot.releases["shopping"].heavy)
    first, second = (dataclasses.replace(loaded, heavy=heavy) for loaded in snapshot.releases.values())
    reference, ending = weakref.ref(heavy), Retired()
    del heavy
    both, one = Snapshot({"a": first, "b": second}), Snapshot({"b": second})
    ending.retire(both, one)
    del first, both
    assert ending.let_go()
    assert reference() is second.heavy
    ending.retire(one, Snapshot())
    del second, one
    assert ending.let_go()
    assert reference() is None
    assert not ending.let_go()


def test_parts_are_freed_one_at_a_time_once_nothing_has_the_whole(monkeypatch, snapshot):
    class Part:
        pass

    graphs, alone = [Part() for _ in range(3)], Part()
    serving = SimpleNamespace(engines=[SimpleNamespace(graphs=graphs), alone])
    alive = [weakref.ref(part) for part in (*graphs, alone)]
    heavy = dataclasses.replace(snapshot.releases["shopping"].heavy, serving=serving)
    counts, ending = [], Retired()
    clock = SimpleNamespace(
        sleep=lambda _: counts.append(sum(reference() is not None for reference in alive)), perf_counter=float
    )
    monkeypatch.setattr(retired, "time", clock)
    ending.retire_heavies([heavy])
    del graphs, alone, serving
    assert not ending.let_go()
    assert counts == []
    del heavy
    assert ending.let_go()
    assert counts == [4, 3, 2, 1, 0]  # first what holds them all
    assert not ending.let_go()


def test_what_still_serves_is_not_retired(snapshot):
    ending = Retired()
    ending.retire(snapshot, snapshot)
    assert not ending.let_go()
    copy = dataclasses.replace(snapshot.releases["shopping"])
    ending.retire(Snapshot({"shopping": copy}), Snapshot({"shopping": snapshot.releases["shopping"]}))
    del copy
    assert ending.let_go()


def test_readiness_counts_this_process_while_a_first_release_loads(follower, monkeypatch):
    told, load = [], follower._loader.load
    monkeypatch.setattr(
        follower._loader, "load", lambda release, serving: (told.append(readiness(follower)), load(release, serving))[1]
    )
    follower.poll()
    assert [(state.ready, state.loading, len(state.serving)) for state in told] == [(False, 1, 0), (False, 1, 1)]
    state = readiness(follower, 2)
    assert (state.ready, state.loading) == (False, 2)
    state = readiness(follower)
    assert (state.ready, state.loading, len(state.serving)) == (True, 0, 2)
    follower.stop()
    state = readiness(follower)
    assert (state.ready, state.loading) == (False, 0)


def test_a_first_release_that_is_refused_does_not_count_as_loading(follower, own_world):
    for path in (own_world.root / "releases" / "shopping").glob("*.json"):
        path.write_text("{")
    follower.poll()
    state = readiness(follower)
    assert (state.ready, state.loading, list(state.serving)) == (False, 0, ["standard"])


def test_it_settles_once_before_it_is_first_ready(own_world, own_settings):
    ready = []
    follower = Follower(own_world.store, own_settings, Telemetry(), settle=lambda: ready.append(follower.is_ready))
    follower.poll()
    own_world.publish("shopping", 1)
    follower.poll()
    assert ready == [False]
    assert follower.is_ready


def test_what_is_settled_is_collected_no_more():
    before = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    try:
        settle()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()
