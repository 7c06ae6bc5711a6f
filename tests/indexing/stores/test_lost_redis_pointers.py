"""A mirror whose pointer is gone or damaged, and a Redis that has releases and no pointer to them."""

import shutil
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from contracts.errors import ArtifactError
from contracts.release import Release
from indexing.cli import app
from indexing.redis_connect import PREFIX, connect
from indexing.redis_rebuild import rebuild
from indexing.redis_store import RedisStore
from tests.indexing.stores.conftest import RedisServer

Host = Callable[[str], RedisStore]
Publish = Callable[..., Release]
POINTERS = f"{PREFIX}pointers"


def lose(store: RedisStore, how: str) -> None:
    """Damage or remove the pointer of a mirror, or all of them, with their copies or not."""
    for folder in ("current", "copies") if "copies" in how else ("current",):
        if "all" in how:
            shutil.rmtree(store.root / folder)
        elif "damaged" in how:
            (store.root / folder / "shopping.json").write_text("{")
        else:
            (store.root / folder / "shopping.json").unlink()


@pytest.mark.parametrize("how", [f"{how}{more}" for how in ("gone", "damaged", "all") for more in ("", " with copies")])
def test_a_mirror_restores_its_pointer(host: Host, publish: Publish, how: str) -> None:
    store = host("a")
    first = publish(store)
    publish(store, "other_")
    store.pin("shopping", first.release_id)
    store.rollback("shopping")  # what was published last is not what serves
    pointer = store.pointer("shopping")
    lose(store, how)
    again = host("a")
    with pytest.raises(ArtifactError, match="shopping"):
        again.current("shopping")
    again.refresh()
    assert again.pointer("shopping") == pointer
    assert again.current("shopping") == first


def test_a_mirror_that_lost_its_pointer_goes_on_without_redis(
    host: Host, publish: Publish, server: RedisServer
) -> None:
    store = host("a")
    release = publish(store)
    pointer = store.pointer("shopping")
    server.empty()
    lose(store, "all")
    host("a").refresh()
    assert host("a").pointer("shopping") == pointer
    assert host("a").lost() == ["shopping"]
    second = publish(host("a"), "other_")
    assert list(host("a").names("shopping")) == [second.release_id, release.release_id]
    assert second.previous == release.release_id


@pytest.mark.parametrize("name", ["a", "new"])
def test_redis_without_a_pointer_is_told_and_nothing_is_pruned(
    host: Host, publish: Publish, server: RedisServer, name: str
) -> None:
    store = host("a")
    for prefix in ("", "other_", "third_"):
        publish(store, prefix)
    server.client.hdel(POINTERS, "shopping")
    keys, parts = set(server.client.keys()), sorted((store.root / "indexes").iterdir())
    found = host(name)
    assert found.lost() == ["shopping"]
    for dry_run in (True, False):
        with pytest.raises(ArtifactError, match="the pointer of shopping is missing, and there are releases of it"):
            found.prune(1, dry_run=dry_run)
    assert keys - {key for key in keys if b"lease" in key} <= set(server.client.keys())
    assert sorted((store.root / "indexes").iterdir()) == parts


def test_a_new_host_tells_of_the_lost_pointer_and_rebuilds_it_when_it_publishes(
    host: Host, publish: Publish, server: RedisServer
) -> None:
    store = host("a")
    names = [publish(store, prefix).release_id for prefix in ("", "other_")]
    publish(store, "standard_")
    server.client.hdel(POINTERS, "shopping")
    new = host("new")
    for _ in range(2):
        with pytest.raises(ArtifactError, match="the pointer of shopping is missing"):
            new.refresh()
    assert new.scenarios() == ["standard"]
    for name, code, told in (("a", 0, "has lost the releases of shopping"), ("new", 1, "has releases of shopping and")):
        shown = CliRunner().invoke(app, ["list", "--store", server.url, "--local", str(host(name).root)])
        assert shown.exit_code == code
        assert told in shown.output.replace("\n", " ")
    release = publish(new, "third_")
    assert release.previous == names[1]
    assert list(new.names("shopping")) == [release.release_id, names[1], names[0]]
    new.refresh()
    store.refresh()
    assert store.current("shopping") == release


def test_a_rebuilt_pointer_takes_no_host_back(host: Host, publish: Publish, server: RedisServer) -> None:
    store = host("a")
    first = publish(store)
    publish(store, "other_")
    store.rollback("shopping")
    server.client.hdel(POINTERS, "shopping")
    names = rebuild(connect(server.url), "shopping")  # as published last, which was rolled back from
    assert list(names)[1:] == [first.release_id]
    store.refresh()
    assert store.current("shopping") == first
    new = host("new")
    new.refresh()
    assert list(new.names("shopping")) == list(names)
    release = publish(store, "third_")  # from its own pointer
    assert list(store.names("shopping")) == [release.release_id, first.release_id]
