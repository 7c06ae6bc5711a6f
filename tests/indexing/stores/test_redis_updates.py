"""Updates through Redis: in order, once on every host, and none is lost or revived when Redis loses what it held."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import AdsieveError
from indexing.redis_connect import Connection, connect
from indexing.redis_stream import BATCH, META, STREAM, append, stopping
from indexing.redis_updates import LEAP, UpdateStream
from indexing.update_log import UpdateLog
from indexing.update_record import Update

Opened = Callable[[str], UpdateStream]


@pytest.fixture
def connection(server: object) -> Connection:
    return connect(server.url)  # type: ignore[attr-defined]


@pytest.fixture
def stream(connection: Connection, tmp_path: Path) -> Opened:
    """Opens the stream as a host of this name has it."""
    return lambda name: UpdateStream(connection, UpdateLog(tmp_path / name), grace_s=0.0)


def bid(ad_id: str, value: float) -> Update:
    return Update(ad_id=ad_id, at=1, bid=value)


def read(stream: UpdateStream) -> list[tuple[int, str]]:
    return [(update.seq, update.ad_id) for update in stream._mirror.read()]


def test_many_updates_come_in_order_and_once(stream: Opened) -> None:
    writer, follower = stream("writer"), stream("follower")
    expected = []
    for start in range(0, 2 * BATCH + 10, 700):
        names = [f"ad-{number}" for number in range(start, start + 700)]
        assert writer.append([bid(name, 1.0) for name in names]).seq == start + 700
        expected += names
        follower.follow()
        follower.follow()
    late = stream("late")
    late.follow()
    for one in (writer, follower, late):
        assert read(one) == list(enumerate(expected, 1))


def test_two_appenders_at_once_number_their_updates_apart(stream: Opened) -> None:
    stream("first").append([bid("first", 1.0)])

    def appends(name: str) -> None:
        one = stream(name)
        for number in range(50):
            one.append([bid(f"{name}-{number}", 1.0)])

    threads = [threading.Thread(target=appends, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    late = stream("late")
    late.follow()
    found = read(late)
    assert [seq for seq, _ in found] == list(range(1, 102))
    for name in ("a", "b"):
        assert [ad_id for _, ad_id in found if ad_id.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(50)]
        mirror = stream(name)
        mirror.follow()
        assert read(mirror) == found


def test_a_restarted_redis_gives_no_number_twice(connection: Connection, server: object, stream: Opened) -> None:
    """One host holds an update that Redis lost and that the appender never had."""
    writer, ahead = stream("writer"), stream("ahead")
    writer.append([bid("kept", 1.0)])
    ahead.follow()
    ahead._mirror.append_mirrored([Update(seq=2, ad_id="lost", at=1, bid=1.0)], log=ahead._mirror.end.log)  # type: ignore[union-attr]
    server.empty()  # type: ignore[attr-defined]
    position = writer.append([bid("new", 1.0)])
    assert position.seq == LEAP + 1
    ahead.follow()
    assert read(ahead) == [(1, "kept"), (2, "lost"), (LEAP + 1, "new")]
    assert writer.append([bid("newer", 1.0)]).seq == LEAP + 2


def test_any_host_brings_back_what_redis_lost(server: object, stream: Opened) -> None:
    writer, follower = stream("writer"), stream("follower")
    writer.append([bid(f"ad-{number}", 1.0) for number in range(BATCH + 5)])
    follower.follow()
    server.empty()  # type: ignore[attr-defined]
    follower.follow()
    late = stream("late")
    late.follow()
    assert read(late) == read(follower)
    assert writer.append([bid("new", 1.0)]).seq == LEAP + 1


def test_a_stream_that_somebody_deleted_is_restored(connection: Connection, stream: Opened) -> None:
    writer = stream("writer")
    writer.append([bid("a", 1.0), bid("b", 1.0)])
    connection.client.delete(STREAM)
    writer.follow()
    late = stream("late")
    late.follow()
    assert read(late) == [(1, "a"), (2, "b")]


def test_a_durable_server_that_is_restarted_keeps_everything(make_server: Callable, tmp_path: Path) -> None:
    server = make_server(durable=True)
    writer = UpdateStream(connect(server.url), UpdateLog(tmp_path / "writer"), grace_s=0.0)
    writer.append([bid("a", 1.0)])
    server.stop()
    with pytest.raises(AdsieveError, match="cannot be reached while reading updates"):
        writer.append([bid("b", 1.0)])
    server.start()
    writer.append([bid("c", 1.0)])
    late = UpdateStream(connect(server.url), UpdateLog(tmp_path / "late"), grace_s=0.0)
    late.follow()
    assert [ad_id for _, ad_id in read(late)] == ["a", "c"]


def test_takedowns_outlive_a_log_that_was_begun_anew(server: object, stream: Opened) -> None:
    old, new = stream("old"), stream("new")
    old.append(
        [
            Update(ad_id="down", at=1, takedown=True),
            Update(ad_id="lifted", at=1, takedown=True),
            Update(ad_id="lifted", at=2, takedown=False),
            Update(ad_id="spent", at=1, budget=0.0),
            Update(ad_id="decided anew", at=1, takedown=True),
            bid("bid", 1.0),
        ]
    )
    server.empty()  # type: ignore[attr-defined]
    new.append([Update(ad_id="decided anew", at=3, takedown=False)])
    old.follow()
    new.follow()
    for one in (old, new):
        records = [(update.ad_id, update.takedown, update.budget) for update in one._mirror.read()]
        assert [record[:2] for record in records] == [("decided anew", False), ("down", True), ("spent", None)]
        assert records[2][2] == 0.0
        assert one._mirror.end == new._mirror.end


def test_a_damaged_entry_is_skipped(connection: Connection, stream: Opened, caplog: pytest.LogCaptureFixture) -> None:
    writer = stream("writer")
    writer.append([bid("a", 1.0)])
    connection.client.xadd(STREAM, {"u": b'{"ad_id":"x","at":1}', "c": "00000000"}, id="2-0")
    connection.client.hset(META, "seq", 2)
    writer.append([bid("b", 1.0)])
    late = stream("late")
    late.follow()
    assert read(late) == [(1, "a"), (3, "b")]
    assert "update 2 is damaged and skipped" in caplog.text


def test_what_stops_an_ad() -> None:
    updates = [
        Update(ad_id="a", at=1, takedown=True),
        Update(ad_id="a", at=2, bid=1.0),
        Update(ad_id="b", at=1, budget=-1.0),
        Update(ad_id="b", at=2, budget=None),
        Update(ad_id="c", at=1, budget=0.0, takedown=True),
        Update(ad_id="c", at=2, takedown=False),
    ]
    assert stopping(iter(updates)) == {
        "a": Update(ad_id="a", at=2, takedown=True),
        "c": Update(ad_id="c", at=2, budget=0.0),
    }


def test_an_append_of_any_length_is_there_at_once_or_not_at_all(connection: Connection, stream: Opened) -> None:
    one, other = stream("a"), stream("b")
    updates = [Update(ad_id=f"ad-{number % 7}", at=number, bid=1.0) for number in range(2_345)]
    end = one.append(updates)
    assert end.seq == len(updates)
    other.follow()
    assert read(other) == [(place, update.ad_id) for place, update in enumerate(updates, 1)]
    assert connection.client.keys(f"{STREAM}:*") == []

    class Lossy:
        """A server that forgets what was sent to it before it is asked to take it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(connection.client, name)

        def register_script(self, script: str) -> Any:
            for key in connection.client.keys(f"{STREAM}:*"):
                connection.client.delete(key)
            return connection.client.register_script(script)

    run = connection.client.hget(META, "run").decode()
    for client, log, of_run, answer in (
        (Lossy(), end.log, run, b"lost"),
        (connection.client, end.log, "another", b"restarted"),
        (connection.client, "another", run, b"other"),
    ):
        assert append(client, log, of_run, updates) == answer
    assert connection.client.xlen(STREAM) == len(updates)
