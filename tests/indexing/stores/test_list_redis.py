"""Commands with a Redis store that came back with nothing, is out of reach, or is not the one of the mirror."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from contracts.errors import AdsieveError, InputError
from indexing.cli import app
from indexing.redis_connect import connect
from indexing.redis_origin import note_origin, require_origin
from indexing.redis_store import RedisStore
from indexing.stores import open_store


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_what_redis_lost_is_told_and_listed_from_the_mirror(
    server: Any, host: Callable[[str], RedisStore], publish: Callable, tmp_path: Path
) -> None:
    def told() -> dict[str, Any]:
        options = ["--store", server.url, "--local", str(tmp_path / "a")]
        result = CliRunner().invoke(app, ["list", *options, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    release = publish(host("a"))
    sound = told()
    assert sound["warnings"] == []
    server.empty()
    found = told()
    assert [one["release_id"] for one in found["releases"]["shopping"]] == [release.release_id]
    assert found["warnings"] == [
        f"{server.url} has lost the releases of shopping: they are listed as this host mirrors them, and the next "
        "publish brings them back"
    ]
    again = publish(host("a"), "other_")
    assert told()["warnings"] == []
    assert list(host("b").names("shopping")) == []
    later = host("b")
    later.refresh()
    assert list(later.names("shopping")) == [again.release_id, release.release_id]


def test_what_is_listed_of_a_server_out_of_reach_is_marked_as_the_mirrors(
    server: Any, host: Callable[[str], RedisStore], publish: Callable, tmp_path: Path
) -> None:
    release = publish(host("a"))
    options = ["list", "--store", server.url.replace("//", "//:secret@"), "--local", tmp_path / "a"]
    assert json.loads(run(*options, "--json").stdout)["from_mirror"] is None
    before = datetime.now().astimezone()
    server.stop()
    listed = run(*options, "--json")
    assert listed.exit_code == 1
    told = json.loads(listed.stdout)
    assert [one["release_id"] for one in told["releases"]["shopping"]] == [release.release_id]
    assert told["from_mirror"]["path"] == str(tmp_path / "a")
    assert abs((before - datetime.fromisoformat(told["from_mirror"]["as_of"])).total_seconds()) < 60
    assert "cannot be reached" in told["from_mirror"]["reason"]
    assert len(told["warnings"]) == 1
    text = run(*options)
    assert text.exit_code == 1
    place = f"the mirror of this host, {tmp_path / 'a'}, as of {told['from_mirror']['as_of']}"
    assert text.stdout.startswith(f"{server.url}: out of reach; from {place}:")
    assert place in text.stderr
    assert "secret" not in text.output
    unknown = run(*options, "--scenario", "standard")
    assert unknown.exit_code == 1
    assert "--scenario standard has no release in the mirror of this host" in str(unknown.exception)
    assert not isinstance(unknown.exception, InputError)
    exported = run("export", *options[1:], "--scenario", "shopping", "--out", tmp_path / "ads.parquet")
    assert exported.exit_code == 0
    assert place in exported.stderr


def test_nothing_is_said_of_a_server_that_was_never_reached(server: Any, tmp_path: Path) -> None:
    server.stop()
    for words in (["list"], ["list", "--json"], ["list", "--scenario", "shopping"]):
        found = run(*words, "--store", server.url, "--local", tmp_path / "new")
        assert found.exit_code == 1
        assert found.stdout == ""
        assert "cannot be reached" in str(found.exception)
        assert not isinstance(found.exception, InputError)


@pytest.mark.parametrize("words", [["update", "--takedown", "ad-1"], ["prune"], ["publish"], ["pin", "shopping-1-a"]])
def test_a_change_of_a_server_out_of_reach_is_refused_once(
    server: Any, host: Callable[[str], RedisStore], publish: Callable, parts: Path, tmp_path: Path, words: list[object]
) -> None:
    publish(host("a"))
    server.stop()
    if words == ["publish"]:
        given = ["--two-tower", parts / "two_tower", "--heavy", parts / "heavy", "--index", parts / "index"]
        words = [*words, *given]
    found = run(*words, "--store", server.url, "--local", tmp_path / "a")
    assert isinstance(found.exception, AdsieveError)
    assert found.exception.exit_code == 1
    assert "cannot be reached" in str(found.exception)
    assert "cannot be reached" not in found.stderr


def test_a_mirror_of_one_server_is_refused_for_another(
    make_server: Callable, publish: Callable, tmp_path: Path
) -> None:
    first, second = make_server(), make_server()
    publish(open_store(first.url, local=tmp_path / "mirror"))
    same = first.url.removesuffix("/0").replace("//", "//user:secret@")
    assert open_store(same, local=tmp_path / "mirror").scenarios() == ["shopping"]
    for alive in (True, False):
        found = run("list", "--store", second.url, "--local", tmp_path / "mirror")
        assert isinstance(found.exception, InputError)
        assert f"mirrors {first.url}, not {second.url}" in str(found.exception)
        if alive:
            second.stop()
    (tmp_path / "mirror" / "origin.json").unlink()
    second.start()
    open_store(second.url, local=tmp_path / "mirror").refresh()
    with pytest.raises(InputError, match=f"mirrors {second.url}"):
        open_store(first.url, local=tmp_path / "mirror")


def test_databases_of_one_server_are_stores_of_their_own(tmp_path: Path) -> None:
    pairs = [
        ("unix:///run/r.sock", "unix:///run/r.sock?db=2"),
        ("unix:///run/r.sock?db=1", "unix:///run/r.sock?db=2"),
        ("redis://host:6379?db=1", "redis://host:6379/2"),
        ("redis://host", "redis://host?db=3"),
    ]
    for number, (first, second) in enumerate(pairs):
        root = tmp_path / str(number)
        note_origin(root, connect(first).name)
        require_origin(root, connect(first.replace("//", "//user:secret@", 1)).name)
        with pytest.raises(InputError, match=f"mirrors {re.escape(connect(first).name)}, not "):
            require_origin(root, connect(second).name)
    note_origin(tmp_path / "same", connect("redis://host:6379/0").name)
    for same in ("redis://host", "rediss://host:6379", "redis://host?db=0"):
        require_origin(tmp_path / "same", connect(same).name)
    note_origin(tmp_path / "socket", connect("unix:///run/r.sock").name)
    require_origin(tmp_path / "socket", connect("unix:///run/r.sock?db=0").name)


def test_a_password_in_the_url_is_not_printed(server: Any, publish: Callable, tmp_path: Path) -> None:
    server.client.acl_setuser("sieve", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
    url = server.url.replace("//", "//sieve:secret@")
    publish(open_store(url, local=tmp_path / "a"))
    given = ["--store", url, "--local", tmp_path / "a"]
    for words in (["list"], ["prune"], ["update", "--takedown", "ad-1"]):
        found = run(*words, *given)
        assert found.exit_code == 0, found.output
        assert "secret" not in found.output
        assert "secret" not in (tmp_path / "a" / "origin.json").read_text()
