"""What a store promises, whether it is a directory or in Redis."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from contracts.bundle import open_bundle
from contracts.errors import InputError, NotCurrentError
from contracts.release import Release
from indexing.index import Index
from indexing.stores import Store, open_store
from indexing.update_record import Update

Publish = Callable[..., Release]


@pytest.fixture(params=["directory", "redis"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens the same store as another process on another host would."""
    if request.param == "directory":
        return lambda: open_store(tmp_path / "store")
    server = request.getfixturevalue("server")
    hosts = iter(range(100))
    return lambda: open_store(server.url, local=tmp_path / f"host-{next(hosts)}")


@pytest.fixture
def store(open_again: Callable[[], Store]) -> Store:
    return open_again()


def test_an_empty_store_has_nothing(store: Store) -> None:
    store.refresh()
    assert store.scenarios() == []
    assert store.current("shopping") is None
    assert store.list("shopping") == []
    assert store.update_log().end is None
    with pytest.raises(InputError, match="no store here|no release"):
        store.rollback("shopping")


def test_releases_are_published_listed_and_rolled_back(
    store: Store, open_again: Callable[[], Store], publish: Publish
) -> None:
    releases = [publish(store, prefix) for prefix in ("", "other_", "third_")]
    assert [release.number for release in releases] == [1, 2, 3]
    assert store.rollback("shopping") == releases[1]
    standard = publish(store, "standard_")
    other = open_again()
    other.refresh()
    for one in (store, other):
        assert one.scenarios() == ["shopping", "standard"]
        assert one.current("standard") == standard
        assert one.list("shopping") == [releases[1], releases[0]]
        assert list(one.names("shopping")) == [releases[1].release_id, releases[0].release_id]
        for release in one.list("shopping"):
            paths = one.paths(release)
            assert open_bundle(paths.two_tower).manifest.version == release.two_tower
            assert Index.open(paths.index).manifest.version == release.index
    assert other.rollback("shopping", releases[0].release_id) == releases[0]
    with pytest.raises(InputError, match="no earlier release"):
        other.rollback("shopping")


def test_of_two_who_roll_back_what_both_saw_one_moves_the_pointer(
    store: Store, open_again: Callable[[], Store], publish: Publish
) -> None:
    first, second, third = (publish(store, prefix) for prefix in ("", "other_", "third_"))
    operators = [open_again(), open_again()]
    for one in operators:
        one.refresh()
    at_once = Barrier(len(operators))

    def roll_back(operator: Store) -> str:
        at_once.wait(30)
        try:
            return operator.rollback("shopping", current=third.release_id).release_id
        except NotCurrentError as error:
            return str(error)

    with ThreadPoolExecutor() as threads:
        told = sorted(threads.map(roll_back, operators), key=len)
    assert told[0] == second.release_id
    assert told[1].endswith(
        f"release of scenario 'shopping' is {second.release_id}, not {third.release_id}; nothing was moved"
    )
    store.refresh()
    assert store.list("shopping") == [second, first]
    assert store.rollback("shopping", current=second.release_id) == first
    with pytest.raises(NotCurrentError):
        store.rollback("shopping", third.release_id, current=second.release_id)
    assert store.current("shopping") == first


def test_pinned_releases_outlive_a_prune(store: Store, open_again: Callable[[], Store], publish: Publish) -> None:
    first, second, third = (publish(store, prefix) for prefix in ("", "other_", "third_"))
    store.pin("shopping", first.release_id)
    with pytest.raises(InputError, match="no-such"):
        store.pin("shopping", "no-such")
    assert store.prune(1, dry_run=True).releases == [second.release_id]
    assert store.list("shopping") == [third, second, first]
    pruned = store.prune(1)
    assert (pruned.releases, pruned.indexes) == ([second.release_id], [second.index])
    other = open_again()
    other.refresh()
    assert other.list("shopping") == [third, first]
    assert other.pointer("shopping") == store.pointer("shopping")
    other.unpin("shopping", first.release_id)
    assert other.prune(1).releases == [first.release_id]
    assert other.list("shopping") == [third]


def test_updates_are_numbered_in_order_and_reach_every_host(
    store: Store, open_again: Callable[[], Store], publish: Publish
) -> None:
    publish(store)
    first = store.append_updates([Update(ad_id="a", at=5, bid=None), Update(ad_id="b", at=4, takedown=True)])
    other = open_again()
    other.refresh()
    second = other.append_updates([Update(ad_id="a", at=3, bid=2.0, status="paused")])
    assert (first.log, first.seq, second.seq) == (second.log, 2, 3)
    store.refresh()
    expected = [
        Update(seq=1, ad_id="a", at=5, bid=None),
        Update(seq=2, ad_id="b", at=4, takedown=True),
        Update(seq=3, ad_id="a", at=3, bid=2.0, status="paused"),
    ]
    for one in (store, other):
        one.refresh()
        assert list(one.update_log().read()) == expected
        assert one.update_log().end == second
        assert list(one.update_log().read(first)) == expected[2:]
    with pytest.raises(InputError, match=r"updates\[1\]: bid: .*-1"):
        store.append_updates([Update(ad_id="a", at=1, bid=1.0), Update(ad_id="b", at=1, bid=-1.0)])
    assert list(store.update_log().read()) == expected


def test_a_prune_folds_updates_together(store: Store, open_again: Callable[[], Store], publish: Publish) -> None:
    publish(store)
    for bid in range(20):
        store.append_updates([Update(ad_id="a", at=bid, bid=float(bid))])
    store.append_updates([Update(ad_id="b", at=1, takedown=True)])
    assert store.prune().updates == 19
    other = open_again()
    other.refresh()
    assert list(other.update_log().read()) == [
        Update(seq=20, ad_id="a", at=19, bid=19.0),
        Update(seq=21, ad_id="b", at=1, takedown=True),
    ]
    assert other.append_updates([Update(ad_id="c", at=1, bid=1.0)]).seq == 22
