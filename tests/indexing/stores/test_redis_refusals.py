"""A Redis that answers with errors, or byte by byte, is told in words that help; and nothing is changed."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts.release import Release
from indexing.redis_connect import RedisError
from indexing.redis_store import RedisStore
from indexing.stores import Store
from indexing.update_record import Update

Publish = Callable[..., Release]


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives the same answer to every command."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(1 << 16):
                        connection.sendall(answer * len(re.findall(rb"(?:^|\n)\*\d+\r", data)))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def dripping(port: int, pause_s: float) -> Iterator[str]:
    """A proxy that passes the answers on byte by byte, with a pause after each, once ``AUTH`` and the like are done."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answers(server: socket.socket, client: socket.socket) -> None:
            passed = 0
            while data := server.recv(1 << 16):
                quick, slow = data[: max(0, 64 - passed)], data[max(0, 64 - passed) :]
                passed += len(quick)
                try:
                    client.sendall(quick)
                    for place in range(len(slow)):
                        if stop.wait(pause_s):
                            return
                        client.sendall(slow[place : place + 1])
                except OSError:  # the client gave up
                    return

        def serve() -> None:
            client, _ = listener.accept()
            with client, socket.create_connection(("127.0.0.1", port)) as server:
                threading.Thread(target=answers, args=(server, client), daemon=True).start()
                while data := client.recv(1 << 16):
                    server.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        stop.set()


def attempts(store: Store, publish: Publish) -> list[Callable[[], object]]:
    """All that asks Redis."""
    return [
        lambda: publish(store, "other_"),
        lambda: store.append_updates([Update(ad_id="a", at=1, takedown=True)]),
        lambda: store.prune(1),
        store.refresh,
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"-LOADING Redis is loading the dataset in memory", r"refuses while .*LOADING.*try again when it has done so"),
        (b"-MISCONF Redis is configured to save RDB snapshots", r"refuses while .*it cannot write to its disk"),
        (b"-NOAUTH Authentication required.", r"refuses while .*ADSIEVE_REDIS_PASSWORD"),
        (b"-CLUSTERDOWN The cluster is down", r"refuses while .*no node of this cluster serves"),
        (b"-MOVED 1234 10.0.0.7:6379", r"refuses while .*10\.0\.0\.7:6379; another node of this cluster"),
        (b"-ERR max number of clients reached", r"cannot be reached while .*max number of clients"),
        (b"-ERR something else", r"failed while .*something else$"),
    ],
)
def test_an_error_is_told_with_what_helps(answer: bytes, message: str, publish: Publish, tmp_path: Path) -> None:
    with answering(answer + b"\r\n") as url:
        for attempt in attempts(RedisStore(url, tmp_path / "host", grace_s=0.0), publish):
            with pytest.raises(RedisError, match=rf"^{re.escape(url)}: {message}"):
                attempt()


def test_a_full_redis_takes_nothing_and_says_what_helps(
    make_server: Callable, publish: Publish, tmp_path: Path
) -> None:
    server = make_server(options=["--maxmemory-policy", "noeviction"])
    publisher, host = (RedisStore(server.url, tmp_path / name, grace_s=0.0) for name in ("publisher", "host"))
    release = publish(publisher)
    publisher.append_updates([Update(ad_id="a", at=1, takedown=True)])
    host.refresh()
    server.client.config_set("maxmemory", 1)
    for attempt in attempts(publisher, publish)[:2]:
        with pytest.raises(RedisError, match=r"refuses while .*OOM command not allowed.*raise its maxmemory") as caught:
            attempt()
        assert "of pipeline" not in str(caught.value)
    host.refresh()
    assert host.list("shopping") == publisher.list("shopping") == [release]
    assert [update.ad_id for update in host.update_log().read()] == ["a"]
    server.client.config_set("maxmemory", 0)
    second = publish(publisher, "other_")
    host.refresh()
    assert host.list("shopping") == publisher.list("shopping") == [second, release]


def test_a_replica_takes_nothing_and_is_read(make_server: Callable, publish: Publish, tmp_path: Path) -> None:
    primary = make_server()
    release = publish(RedisStore(primary.url, tmp_path / "publisher", grace_s=0.0))
    replica = make_server(options=["--replicaof", "127.0.0.1", str(primary.port)])
    store = RedisStore(replica.url, tmp_path / "host", grace_s=0.0)
    for _ in range(1000):
        if replica.client.info("replication")["master_link_status"] == "up":
            break
        time.sleep(0.02)
    store.refresh()
    assert store.current("shopping") == release
    for attempt in attempts(store, publish)[:2]:
        with pytest.raises(RedisError, match=r"refuses while .*READONLY.*give the address of its primary"):
            attempt()


def test_a_user_without_rights_learns_which_it_needs(make_server: Callable, publish: Publish, tmp_path: Path) -> None:
    server = make_server()
    server.client.acl_setuser("reader", enabled=True, passwords=["+p"], keys=["{adsieve}:*"], commands=["+@read"])
    store = RedisStore(server.url.replace("redis://", "redis://reader:p@"), tmp_path / "host", grace_s=0.0)
    with pytest.raises(RedisError, match=r"refuses while .*NOPERM.*\+@all -@dangerous \+info"):
        publish(store)


def test_an_answer_that_drips_in_is_given_up(
    server: object, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = publish(RedisStore(server.url, tmp_path / "publisher", grace_s=0.0))  # type: ignore[attr-defined]
    monkeypatch.setenv("ADSIEVE_REDIS_ANSWER_TIMEOUT_S", "0.3")
    with dripping(server.port, pause_s=0.02) as url:  # type: ignore[attr-defined]
        host = RedisStore(url, tmp_path / "host", grace_s=0.0)
        with pytest.raises(RedisError, match=r"no answer in time while .*ADSIEVE_REDIS_TIMEOUT_S, _ANSWER_TIMEOUT_S"):
            host.refresh()
    assert host.scenarios() == []
    assert not list(host.root.glob("pulls/*"))
    direct = RedisStore(server.url, host.root, grace_s=0.0)  # type: ignore[attr-defined]
    direct.refresh()
    assert direct.current("shopping") == release
