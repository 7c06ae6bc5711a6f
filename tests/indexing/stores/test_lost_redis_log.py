"""The log of updates in Redis is gone: what knows that there was one; a takedown goes through where nothing does."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.errors import AdsieveError, ArtifactError, InputError
from indexing import update_warnings
from indexing.cli import app
from indexing.lost_log import NOTE
from indexing.redis_store import RedisStore
from indexing.redis_stream import META, STREAM

Run = Callable[..., str]


@pytest.fixture
def update(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command of the host of this name and gives its output."""
    monkeypatch.setattr(update_warnings, "GRACE_S", 0.0)
    monkeypatch.setitem(RedisStore.__init__.__kwdefaults__, "grace_s", 0.0)

    def run(host: str, *arguments: str) -> str:
        options = ["--store", server.url, "--local", str(tmp_path / host)]
        result = CliRunner().invoke(app, ["update", *arguments, *options])
        if result.exception is not None:
            raise result.exception
        return result.output

    return run


def states(server: Any, directory: Path) -> list[tuple[str, bool | None]]:
    store = RedisStore(server.url, directory, grace_s=0.0)
    store.refresh()
    return [(one.ad_id, one.takedown) for one in store.update_log().read()]


def test_a_takedown_goes_through_where_redis_came_back_empty(server: Any, tmp_path: Path, update: Run) -> None:
    output = update("newcomer", "--takedown", "ad-1")
    assert "no release here, so no ad is known to it" in output
    assert states(server, tmp_path / "other") == [("ad-1", True)]


def test_what_a_mirror_noted_is_missed(server: Any, tmp_path: Path, update: Run) -> None:
    update("host", "--takedown", "ad-1")
    assert (tmp_path / "host" / NOTE).is_file()
    server.client.flushall()
    shutil.rmtree(tmp_path / "host" / "updates")
    with pytest.raises(ArtifactError, match=f"which .*{NOTE} tells of, is gone; .*--new-log"):
        update("host", "--bid", "ad-2=1")
    assert "another log is begun" in update("host", "--new-log", "--takedown", "ad-1")
    update("host", "--bid", "ad-2=1")
    assert states(server, tmp_path / "other") == [("ad-1", True), ("ad-2", None)]


def test_what_redis_itself_kept_of_a_log_is_missed(server: Any, tmp_path: Path, update: Run) -> None:
    update("host", "--takedown", "ad-1")
    server.client.delete(STREAM)
    assert server.client.exists(META)
    with pytest.raises(ArtifactError, match=r"the log of updates .*, of which .* had numbers up to 1, is gone"):
        update("newcomer", "--bid", "ad-2=1")


def test_a_running_host_brings_back_a_log_that_is_missed(
    server: Any, tmp_path: Path, update: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    update("host", "--takedown", "ad-1")
    server.client.delete(STREAM)
    host = RedisStore(server.url, tmp_path / "host", grace_s=0.0)
    monkeypatch.setattr("indexing.update_warnings.time.sleep", lambda _: host.refresh())
    update("newcomer", "--bid", "ad-2=1")
    assert [ad_id for ad_id, _ in states(server, tmp_path / "newcomer")] == ["ad-1", "ad-2"]


def test_a_log_that_a_host_has_is_not_replaced(update: Run) -> None:
    update("host", "--takedown", "ad-1")
    with pytest.raises(InputError, match="the log in Redis is not lost, this host has a copy of it"):
        update("host", "--new-log")


def test_a_mirror_that_cannot_be_written_does_not_stop_updates(
    server: Any, tmp_path: Path, update: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AdsieveError("no space left")

    monkeypatch.setattr("indexing.redis_updates.note_log", fail)
    update("host", "--takedown", "ad-1")
    assert states(server, tmp_path / "other") == [("ad-1", True)]
