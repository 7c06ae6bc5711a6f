"""Passwords, certificates and time limits of the connection; errors name the host and never the password."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from contracts.errors import InputError
from contracts.release import Release
from indexing.redis_connect import RedisError, connect
from indexing.redis_store import RedisStore
from indexing.stores import open_store

SECRET = "open sesame/@:?#"


def test_a_password_is_asked_for_and_never_shown(
    make_server: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[..., Release]
) -> None:
    server = make_server(options=["--requirepass", SECRET])
    with pytest.raises(RedisError, match=r"redis://127\.0\.0\.1:\d+/0: .*ADSIEVE_REDIS_PASSWORD"):
        open_store(server.url, local=tmp_path / "a").refresh()
    monkeypatch.setenv("ADSIEVE_REDIS_PASSWORD", "wrong" + SECRET)
    with pytest.raises(RedisError, match="ADSIEVE_REDIS_PASSWORD") as caught:
        open_store(server.url, local=tmp_path / "a").refresh()
    assert SECRET not in str(caught.value)
    monkeypatch.setenv("ADSIEVE_REDIS_PASSWORD", SECRET)
    release = publish(open_store(server.url, local=tmp_path / "a"))
    follower = open_store(server.url, local=tmp_path / "b")
    follower.refresh()
    assert follower.current("shopping") == release


def test_a_user_of_an_access_list_stands_in_the_url(make_server: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    server.client.acl_setuser("sieve", enabled=True, passwords=["+pass"], keys=["*"], commands=["+@all"])
    monkeypatch.setenv("ADSIEVE_REDIS_PASSWORD", "pass")
    url = server.url.replace("redis://", "redis://sieve@")
    assert connect(url).client.acl_whoami() == "sieve"
    monkeypatch.delenv("ADSIEVE_REDIS_PASSWORD")
    with_password = server.url.replace("redis://", "redis://sieve:pass@")
    assert connect(with_password).client.acl_whoami() == "sieve"
    assert connect(with_password).name == server.url


@pytest.mark.parametrize("url", ["http://host", "redis://user:secret@host:port/0", "redis://h:6379/0?socket_timeout=x"])
def test_malformed_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(InputError) as caught:
        connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["ADSIEVE_REDIS_TIMEOUT_S", "ADSIEVE_REDIS_CONNECT_TIMEOUT_S"])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
def test_time_limits_are_positive_numbers(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{name}: expected a number of seconds above 0, got '{value}'"):
        connect("redis://host", {name: value})


def test_a_server_that_stands_still_is_told_not_waited_for(
    server: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[..., Release]
) -> None:
    release = publish(RedisStore(server.url, tmp_path / "publisher"))  # type: ignore[attr-defined]
    monkeypatch.setenv("ADSIEVE_REDIS_TIMEOUT_S", "0.3")
    store = RedisStore(server.url, tmp_path / "host")  # type: ignore[attr-defined]
    store.refresh()
    server.client.client_pause(1500)  # type: ignore[attr-defined]
    with pytest.raises(RedisError, match=r"127\.0\.0\.1:\d+/0: no answer in time while .*ADSIEVE_REDIS_TIMEOUT_S"):
        store.refresh()
    assert store.current("shopping") == release
    monkeypatch.delenv("ADSIEVE_REDIS_TIMEOUT_S")
    patient = RedisStore(server.url, tmp_path / "host")  # type: ignore[attr-defined]
    patient.refresh()
    assert patient.current("shopping") == release


def test_a_connection_that_breaks_while_keys_are_watched_is_told_as_such(server: object) -> None:
    connection = connect(server.url)  # type: ignore[attr-defined]

    def broken() -> None:
        with connection.naming("moving"), connection.client.pipeline() as transaction:
            transaction.watch("key")
            server.empty()  # type: ignore[attr-defined]
            transaction.get("key")

    def changed() -> None:
        with connection.naming("moving"), connection.client.pipeline() as transaction:
            transaction.watch("key")
            connection.client.set("key", "other")
            transaction.multi()
            transaction.set("key", "own")
            transaction.execute()

    with pytest.raises(RedisError, match="cannot be reached while moving: .* occurred while watching"):
        broken()
    with pytest.raises(redis.WatchError):
        changed()


def test_tls_of_a_server_without_it_is_told_within_the_time_of_a_connection(
    server: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADSIEVE_REDIS_TIMEOUT_S", "1000")
    monkeypatch.setenv("ADSIEVE_REDIS_CONNECT_TIMEOUT_S", "0.3")
    url = server.url.replace("redis://", "rediss://")  # type: ignore[attr-defined]
    with pytest.raises(RedisError, match=r"rediss://.*: does the server speak it on this port\? redis:// does without"):
        open_store(url, local=tmp_path / "a").refresh()


@pytest.mark.apt
def test_tls_trusts_the_given_authority_alone(
    debian_server: str,
    make_server: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    publish: Callable[..., Release],
) -> None:
    _make_certificates(tmp_path)
    files = {"--tls-cert-file": "server.crt", "--tls-key-file": "server.key", "--tls-ca-cert-file": "ca.crt"}
    paths = [part for option, name in files.items() for part in (option, str(tmp_path / name))]
    server = make_server(executable=debian_server, tls=True, options=paths)
    url = server.url.replace("redis://", "rediss://")
    with pytest.raises(RedisError, match="cannot be reached while .*certificate"):
        open_store(url, local=tmp_path / "a").refresh()
    monkeypatch.setenv("ADSIEVE_REDIS_CA", str(tmp_path / "absent.crt"))
    with pytest.raises(InputError, match="ADSIEVE_REDIS_CA: no such file"):
        open_store(url, local=tmp_path / "a")
    monkeypatch.setenv("ADSIEVE_REDIS_CA", str(tmp_path / "ca.crt"))
    with pytest.raises(RedisError):  # the server asks for a certificate of the client
        open_store(url, local=tmp_path / "a").refresh()
    monkeypatch.setenv("ADSIEVE_REDIS_CERT", str(tmp_path / "client.crt"))
    monkeypatch.setenv("ADSIEVE_REDIS_KEY", str(tmp_path / "client.key"))
    release = publish(open_store(url, local=tmp_path / "a"))
    follower = open_store(url, local=tmp_path / "b")
    follower.refresh()
    assert follower.current("shopping") == release
    with pytest.raises(RedisError):
        open_store(url.replace("rediss://", "redis://"), local=tmp_path / "b").refresh()


def _make_certificates(directory: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)

    key = ["-newkey", "rsa:2048", "-nodes", "-days", "1"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=an authority")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl("req", *key[:3], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "1"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")
