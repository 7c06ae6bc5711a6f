"""Redis carries releases between hosts; whatever happens to it, each host keeps a whole release."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from contracts.bundle import open_bundle
from contracts.errors import AdsieveError, ArtifactError, InputError
from contracts.release import Release
from indexing import redis_mirror, redis_pull, redis_store, redis_upload
from indexing.index import Index
from indexing.listing import listed
from indexing.redis_connect import RedisError
from indexing.redis_parts import COMPLAINTS, UPLOADS, Upload, part_names, read_mark
from indexing.redis_store import RedisStore
from indexing.store_recovery import readable_releases
from indexing.stores import Store, pull_again
from indexing.update_record import Update

Host = Callable[[str], RedisStore]
Publish = Callable[..., Release]


def check_release(store: Store, release: Release) -> None:
    """Every part opens, verified, and is the version that the release names."""
    paths = store.local.paths(release)
    assert open_bundle(paths.two_tower).manifest.version == release.two_tower
    assert Index.open(paths.index).manifest.version == release.index
    assert paths.heavy is not None
    assert open_bundle(paths.heavy).manifest.version == release.heavy


def chunk_keys(store: RedisStore, part: str) -> list[str]:
    mark = read_mark(store._connection, part)
    assert mark is not None
    return [chunk.key for chunk in mark.chunks(part)]


def takedown(ad_id: str, value: bool = True) -> Update:
    return Update(ad_id=ad_id, at=1, takedown=value)


def taken_down(store: Store) -> dict[str, bool]:
    return {update.ad_id: update.takedown for update in store.update_log().read() if update.takedown is not None}


def test_a_host_follows_what_another_publishes(host: Host, publish: Publish) -> None:
    publisher, follower = host("publisher"), host("follower")
    follower.refresh()
    assert follower.scenarios() == []
    first = publish(publisher)
    second = publish(publisher, "other_")
    follower.refresh()
    assert follower.list("shopping") == publisher.list("shopping") == [second, first]
    for release in (first, second):
        check_release(follower, release)
    assert publisher.rollback("shopping") == first
    follower.refresh()
    assert follower.current("shopping") == first
    assert not list(follower.root.glob("pulls/*"))
    assert not list(follower.root.glob("unsettled/*"))


def test_a_change_made_by_a_host_that_has_not_followed_is_made_upon_what_others_made(
    host: Host, publish: Publish
) -> None:
    one, other = host("one"), host("other")
    first, second = publish(one), publish(other, "other_")
    third = publish(one, "third_")
    assert other.rollback("shopping") == second
    assert [release.release_id for release in other.list("shopping")] == [second.release_id, first.release_id]
    assert third.previous == second.release_id


def test_a_publisher_that_another_overtakes_begins_again(
    host: Host, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = host("slow"), host("fast")
    original = slow._move
    between: list[Release] = []

    def overtaken(*arguments: object) -> None:
        if not between:
            between.append(publish(fast, "other_"))
        original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(slow, "_move", overtaken)
    release = publish(slow)
    assert slow.list("shopping") == [release, between[0]]
    assert list(readable_releases(slow.root, "shopping").values()) == [between[0], release]
    fast.refresh()
    assert fast.list("shopping") == [release, between[0]]


def test_pruned_releases_leave_redis_and_every_mirror(host: Host, publish: Publish) -> None:
    publisher, follower = host("publisher"), host("follower")
    releases = [publish(publisher, prefix) for prefix in ("", "other_", "third_")]
    follower.refresh()
    publisher.prune(keep=1)
    client = publisher._connection.client
    kept = part_names(releases[-1])
    assert sorted(msgspec.json.decode(data, type=Upload).part for data in client.hvals(UPLOADS)) == sorted(kept)
    expected = {key.encode() for part in kept for key in chunk_keys(publisher, part)}
    assert set(client.scan_iter("{adsieve}:chunk:*")) == expected
    follower.refresh()
    assert follower.list("shopping") == [releases[-1]]
    assert [path.name for path in (follower.root / "indexes").iterdir()] == [releases[-1].index]
    host("late").refresh()
    check_release(host("late"), releases[-1])


def damage(store: RedisStore, release: Release, how: str) -> None:
    part = f"indexes/{release.index}"
    client = store._connection.client
    key = max(chunk_keys(store, part), key=client.strlen)
    content = bytearray(client.get(key))
    if how == "flipped":
        content[len(content) // 2] ^= 1
        client.set(key, bytes(content))
    elif how == "truncated":
        client.set(key, bytes(content[:-1]))
    elif how == "missing":
        client.delete(key)
    else:
        mark = client.get("{adsieve}:mark:" + part)
        client.set("{adsieve}:mark:" + part, mark.replace(b"vectors", b"Vectors") if how == "mark" else b"")


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing", "mark", "no mark"])
def test_a_damaged_snapshot_is_refused_and_the_next_publish_mends_it(host: Host, publish: Publish, how: str) -> None:
    publisher, follower = host("publisher"), host("follower")
    first = publish(publisher)
    follower.refresh()
    second = publish(publisher, "other_")
    damage(publisher, second, how)
    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"redis://127\.0\.0\.1:\d+/0: .*index-shopping-\w+.*publish"):
            follower.refresh()
        assert follower.current("shopping") == first
        check_release(follower, first)
    third = publish(publisher, "third_")
    follower.refresh()
    assert follower.list("shopping") == [third, second, first]
    for release in (first, second, third):
        check_release(follower, release)
    assert publisher._connection.client.hlen(COMPLAINTS) == 0


def test_a_damaged_snapshot_is_mended_by_who_has_the_original(host: Host, publish: Publish) -> None:
    publisher, follower, other = host("publisher"), host("follower"), host("other")
    first = publish(publisher)
    damage(publisher, first, "flipped")
    with pytest.raises(ArtifactError, match="wrong checksum"):
        follower.refresh()
    again = publish(other)
    follower.refresh()
    assert follower.list("shopping") == [again, first]
    check_release(follower, again)


def test_another_release_can_be_published_over_a_damaged_one(host: Host, publish: Publish) -> None:
    first = publish(host("publisher"))
    damage(host("publisher"), first, "flipped")
    second = publish(host("other"), "other_")
    follower = host("follower")
    follower.refresh()
    assert follower.current("shopping") == second
    check_release(follower, second)


def test_redis_that_comes_back_empty_is_filled_by_the_next_publish(
    server: object, host: Host, publish: Publish
) -> None:
    publisher, follower = host("publisher"), host("follower")
    other_scenario = publish(publisher, "standard_")
    first, second = publish(publisher), publish(publisher, "other_")
    publisher.append_updates([takedown("ad-1")])
    follower.refresh()
    server.empty()  # type: ignore[attr-defined]
    follower.refresh()
    assert follower.list("shopping") == [second, first]
    assert taken_down(follower) == {"ad-1": True}
    again = publish(publisher, "other_")
    follower.refresh()
    assert follower.list("shopping") == [again, second, first]
    newcomer = host("newcomer")
    newcomer.refresh()
    assert newcomer.list("shopping") == [again, second, first]
    assert newcomer.list("standard") == [other_scenario]
    assert taken_down(newcomer) == {"ad-1": True}
    for release in (*newcomer.list("shopping"), other_scenario):
        check_release(newcomer, release)


def test_a_host_does_not_step_back_to_what_an_older_mirror_restores(
    server: object, host: Host, publish: Publish
) -> None:
    old, publisher, follower = host("old"), host("publisher"), host("follower")
    first = publish(old)
    second = publish(publisher, "other_")
    follower.refresh()
    server.empty()  # type: ignore[attr-defined]
    standard = publish(old, "standard_")
    assert old.current("shopping") == first
    follower.refresh()
    assert follower.current("shopping") == second
    assert follower.current("standard") == standard
    publish(publisher, "standard_")
    newcomer = host("newcomer")
    newcomer.refresh()
    assert newcomer.current("shopping") == second
    third = publish(old, "third_")
    follower.refresh()
    assert follower.current("shopping") == third


def test_a_host_serves_its_mirror_while_redis_is_down(server: object, host: Host, publish: Publish) -> None:
    release = publish(host("publisher"))
    host("follower").refresh()
    server.stop()  # type: ignore[attr-defined]
    follower = host("follower")
    assert follower.current("shopping") == release
    check_release(follower, release)
    for attempt in (
        follower.refresh,
        lambda: publish(host("publisher"), "other_"),
        lambda: follower.pin("shopping", "x"),
    ):
        with pytest.raises(RedisError, match=r"redis://127\.0\.0\.1:\d+/0: cannot be reached while"):
            attempt()  # type: ignore[operator]
    assert follower.current("shopping") == release
    server.start()  # type: ignore[attr-defined]
    third = publish(host("publisher"), "third_")
    follower.refresh()
    assert follower.current("shopping") == third


def test_one_process_of_a_host_pulls_at_a_time(host: Host, publish: Publish) -> None:
    publish(host("publisher"))
    busy, idle = host("shared"), host("shared")
    with busy._incoming.puller():
        idle.refresh()
        assert idle.scenarios() == []
    idle.refresh()
    assert busy.scenarios() == ["shopping"]


def test_what_dead_publishers_and_pullers_left_is_removed(host: Host, publish: Publish, parts: Path) -> None:
    publisher = host("publisher")
    client = publisher._connection.client
    upload = Upload(part="indexes/index-x", chunk_bytes=4, sizes=[6])
    client.hset(UPLOADS, "dead", msgspec.json.encode(upload))
    client.hset(UPLOADS, "alive", msgspec.json.encode(upload))
    client.set("{adsieve}:lease:alive", "", ex=60)
    for name in ("dead", "alive"):
        for chunk in upload.chunks(name):
            client.set(chunk.key, b"x" * chunk.bytes)
    shutil.copytree(parts / "index", publisher.root / "pulls" / "index-x.0")
    publish(publisher)
    assert set(client.scan_iter("{adsieve}:chunk:indexes/index-x:*")) == {
        b"{adsieve}:chunk:indexes/index-x:alive:0.0",
        b"{adsieve}:chunk:indexes/index-x:alive:0.1",
    }
    assert not (publisher.root / "pulls").exists()


def test_a_pulled_part_that_the_machine_lost_is_pulled_again(host: Host, publish: Publish) -> None:
    release = publish(host("publisher"))
    follower = host("follower")
    follower.refresh()
    part = f"indexes/{release.index}"
    (follower.root / "unsettled").mkdir(exist_ok=True)
    (follower.root / "unsettled" / part.replace("/", "@")).write_text("an earlier boot")
    (follower.root / part / "vectors.npy").write_bytes(b"")
    follower.refresh()
    check_release(follower, release)


@pytest.mark.parametrize("name", ["indexes/{index}/vectors.npy", "bundles/{two_tower}/manifest.json"])
def test_a_file_that_the_mirror_lost_is_pulled_again_once_somebody_doubts_it(
    host: Host, publish: Publish, name: str
) -> None:
    release = publish(host("publisher"))
    follower = host("follower")
    follower.refresh()
    path = follower.root / name.format(index=release.index, two_tower=release.two_tower)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    follower.refresh()
    with pytest.raises(ArtifactError, match="wrong checksum"):
        check_release(follower, release)
    follower.doubt(release)
    follower.refresh()
    check_release(follower, release)
    assert not list(follower.root.glob("unsettled/*"))


def test_a_rollback_to_what_the_mirror_lost_pulls_it_again(host: Host, publish: Publish) -> None:
    publisher, follower = host("publisher"), host("follower")
    first = publish(publisher)
    publish(publisher, "other_")
    follower.refresh()
    (follower.paths(first).index / "vectors.npy").write_bytes(b"")
    assert follower.rollback("shopping") == first
    check_release(follower, first)
    publisher.refresh()
    assert publisher.current("shopping") == first


def test_a_new_host_has_all_scenarios_before_the_first(
    host: Host, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = [publish(host("publisher"), prefix) for prefix in ("", "standard_")]
    follower = host("follower")
    original = follower._incoming.directory.adopt

    def adopt(*arguments: object) -> None:
        for release in releases:
            check_release(follower, release)
        original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(follower._incoming.directory, "adopt", adopt)
    follower.refresh()
    assert [follower.current(name) for name in ("shopping", "standard")] == releases


def test_what_no_pointer_names_leaves_the_mirror_though_an_earlier_release_is_lost(
    host: Host, publish: Publish
) -> None:
    publisher, follower = host("publisher"), host("follower")
    first = publish(publisher)
    follower.refresh()
    second = publish(publisher, "other_")
    publisher.prune(1)
    third = publish(publisher, "third_")
    part = f"indexes/{second.index}"
    for key in ("{adsieve}:mark:" + part, *chunk_keys(publisher, part)):
        publisher._connection.client.delete(key)
    with pytest.raises(ArtifactError, match=f"{second.index} is not there"):
        follower.refresh()
    assert follower.current("shopping") == third
    assert {path.name for path in (follower.root / "indexes").iterdir()} == {third.index}
    assert not follower.paths(first).index.exists()


def test_a_clock_that_moves_back_changes_no_order(
    host: Host, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """Every reading is a day before the last."""

        readings = 0

        @classmethod
        def now(cls, tz: object = None) -> datetime:
            cls.readings += 1
            return datetime.fromtimestamp(1_790_000_000 - 86_400 * cls.readings, UTC)

    monkeypatch.setattr("indexing.store_files.datetime", Clock)
    publisher, follower = host("publisher"), host("follower")
    releases = [publish(publisher, prefix) for prefix in ("", "other_", "third_")]
    for at in (3, 2, 1):
        publisher.append_updates([Update(ad_id="ad-1", at=at, bid=float(at), takedown=at != 2)])
        follower.refresh()
    assert [release.created_at for release in releases] == sorted(
        (release.created_at for release in releases), reverse=True
    )
    assert follower.list("shopping") == releases[::-1]
    ages = [one.age_s for one in listed(follower.local, "shopping", datetime.fromisoformat(releases[2].created_at))]
    assert ages == [0, -86_400, -172_800]
    assert [(update.seq, update.bid) for update in follower.update_log().read()] == [(1, 3), (2, 2), (3, 1)]
    assert taken_down(follower) == {"ad-1": True}
    assert publisher.rollback("shopping") == releases[1]
    publisher.prune(1)
    follower.refresh()
    assert follower.list("shopping") == [releases[1]]


def test_redis_that_comes_back_as_it_was_takes_nobody_back(server: object, host: Host, publish: Publish) -> None:
    publisher, follower = host("publisher"), host("follower")
    client = publisher._connection.client
    first = publish(publisher)
    follower.refresh()
    saved = {key: client.dump(key) for key in client.scan_iter("*")}
    second = publish(publisher, "other_")
    follower.refresh()
    client.flushall()
    for key, content in saved.items():
        client.restore(key, 0, content)
    follower.refresh()
    assert follower.list("shopping") == [second, first]
    publish(publisher, "standard_")
    for store in (follower, host("newcomer")):
        store.refresh()
        assert store.list("shopping") == [second, first]
        check_release(store, second)


def test_a_damaged_copy_of_an_earlier_release_holds_no_publish_up(
    host: Host, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = host("publisher")
    first = publish(publisher)
    vectors = publisher.paths(first).index / "vectors.npy"
    content = vectors.read_bytes()
    vectors.unlink()  # its bytes are shared with the original
    vectors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    publisher._connection.client.flushall()
    second = publish(publisher, "other_")
    assert f"{vectors}: wrong checksum" in caplog.text
    newcomer = host("newcomer")
    with pytest.raises(ArtifactError, match=f"{first.index} is not there"):
        newcomer.refresh()
    assert newcomer.current("shopping") == second
    check_release(newcomer, second)


@pytest.mark.parametrize("part", ["index", "two_tower"])
def test_what_is_damaged_in_a_mirror_is_pulled_again_when_asked(host: Host, publish: Publish, part: str) -> None:
    publish(host("publisher"))
    follower = host("follower")
    follower.refresh()
    (release,) = follower.list("shopping")
    directory = getattr(follower.paths(release), part)
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.stat().st_size:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
            break
    with pytest.raises(ArtifactError):
        check_release(follower, release)
    pull_again(follower)
    check_release(follower, release)


def test_what_was_just_verified_is_not_summed_again_and_all_else_is(
    host: Host, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed: list[int] = []
    original = redis_upload._sha256

    def counting(content: memoryview) -> str:
        summed.append(len(content))
        return original(content)

    monkeypatch.setattr(redis_upload, "_sha256", counting)
    publisher = host("publisher")
    first = publish(publisher)
    assert summed == []  # links to the files that were verified
    publisher._connection.client.flushall()
    publish(publisher, "other_")
    sizes = {path: path.stat().st_size for path in publisher.paths(first).index.rglob("*") if path.is_file()}
    of_files = sorted(size for path, size in sizes.items() if path.name != "READY")
    assert sorted(set(of_files) - set(summed)) == []  # the earlier index, which nobody verified now
    monkeypatch.setattr(redis_store, "are_links", lambda *_: False)
    summed.clear()
    publish(publisher, "third_")
    assert summed  # copies may differ from what was verified


def test_a_full_disk_leaves_the_mirror_as_it_was(host: Host, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, follower = host("publisher"), host("follower")
    first = publish(publisher)
    follower.refresh()
    second = publish(publisher, "other_")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(redis_pull, "_write", full)
        with pytest.raises(AdsieveError, match="cannot be written: No space left on device"):
            follower.refresh()
    assert follower.current("shopping") == first
    assert not list(follower.root.glob("pulls/*"))
    follower.refresh()
    assert follower.current("shopping") == second


def test_updates_do_not_wait_for_a_long_transfer(host: Host, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, follower = host("publisher"), host("follower")
    publish(publisher)
    monkeypatch.setattr(redis_mirror, "FOLLOW_EVERY_S", -1.0)
    seen: list[int] = []

    def write(*arguments: object) -> None:
        publisher.append_updates([takedown(f"ad-{len(seen)}")])
        seen.append(len(taken_down(follower)))
        original(*arguments)  # type: ignore[arg-type]

    original = redis_pull._write
    monkeypatch.setattr(redis_pull, "_write", write)
    follower.refresh()
    assert seen[-1] > 0


def test_a_user_with_few_rights_suffices(server: object, host: Host, publish: Publish, tmp_path: Path) -> None:
    server.client.acl_setuser(  # type: ignore[attr-defined]
        "sieve", enabled=True, passwords=["+pass"], keys=["{adsieve}:*"], commands=["+@all", "-@dangerous", "+info"]
    )
    url = server.url.replace("redis://", "redis://sieve:pass@")  # type: ignore[attr-defined]
    store = RedisStore(url, tmp_path / "limited", grace_s=0.0)
    for prefix in ("", "other_", "third_"):
        release = publish(store, prefix)
        store.append_updates([takedown("ad-1")])
    store.prune(1)
    assert store.rollback("shopping", release.release_id) == release
    follower = RedisStore(url, tmp_path / "other", grace_s=0.0)
    follower.refresh()
    assert follower.list("shopping") == [release]


def test_a_mirror_that_cannot_be_written_is_named(server: object, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = RedisStore(server.url, tmp_path / "file" / "mirror")  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="mirror: cannot mirror redis://.*: Not a directory; .*ADSIEVE_LOCAL"):
        store.refresh()


@pytest.mark.parametrize("field", ["release_id", "index", "two_tower", "heavy"])
def test_names_that_lead_out_of_a_mirror_are_followed_nowhere(
    host: Host, publish: Publish, tmp_path: Path, field: str
) -> None:
    publisher, follower = host("publisher"), host("follower")
    first = publish(publisher)
    follower.refresh()
    second = publish(publisher, "other_")
    client, key = publisher._connection.client, "{adsieve}:releases:shopping"
    record = msgspec.json.decode(client.hget(key, second.release_id))
    outside = f"../../outside/{record[field]}"
    client.hset(key, second.release_id, msgspec.json.encode({**record, field: outside}))
    if field in ("index", "two_tower", "heavy"):
        kind = "indexes" if field == "index" else "bundles"
        mark = client.get(f"{{adsieve}}:mark:{kind}/{record[field]}")
        client.set(f"{{adsieve}}:mark:{kind}/{outside}", mark)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match=f"release {second.release_id} of shopping is missing"):
        follower.refresh()
    assert sorted(tmp_path.iterdir()) == before
    assert follower.current("shopping") == first
    pointer = msgspec.json.decode(client.hget("{adsieve}:pointers", "shopping"))
    pointer["pointer"]["history"] = ["../../outside"]
    client.hset("{adsieve}:pointers", "shopping", msgspec.json.encode(pointer))
    with pytest.raises(ArtifactError, match="pointer of 'shopping' is damaged"):
        host("late").refresh()
