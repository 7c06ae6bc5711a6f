"""A log that is begun anew begins with what the one before had stopped, as far as anything is left of that."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from indexing import update_log
from indexing.cli import app
from indexing.overlay_stops import HOSTS, STOPS, Stops
from indexing.stores import open_store
from indexing.update_log import UpdateLog
from indexing.update_record import Update
from indexing.update_salvage import stops_left


def told(updates: list[Update]) -> dict[str, Any]:
    return {update.ad_id: True if update.takedown else update.budget for update in updates}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UpdateLog:
    """A log of several segments."""
    monkeypatch.setattr(update_log, "SEGMENT_BYTES", 100)
    log = UpdateLog(tmp_path / "updates")
    for number in range(4):
        log.append([Update(ad_id=f"down-{number}", at=0, takedown=True), Update(ad_id="x", at=0, bid=1.0)])
    log.append([Update(ad_id="down-0", at=0, takedown=False), Update(ad_id="spent", at=0, budget=0.0)])
    log.append([Update(ad_id="filled", at=0, budget=0.0), Update(ad_id="filled", at=0, budget=1.0)])
    return log


def test_what_stood_is_left_of_a_log_whose_manifest_is_lost(log: UpdateLog, tmp_path: Path) -> None:
    whole = {"down-1": True, "down-2": True, "down-3": True, "spent": 0.0}
    for name in ("log.json", "given"):
        (log.directory / name).unlink()
        assert told(stops_left(log.directory, tmp_path, now_us=7)) == whole
    assert {update.at for update in stops_left(log.directory, tmp_path, now_us=7)} == {7}


def test_a_segment_that_is_missing_lifts_nothing_that_the_others_tell(log: UpdateLog, tmp_path: Path) -> None:
    paths = sorted(log.directory.glob("*.jsonl"))
    restoring = next(path for path in paths if b'"takedown":false' in path.read_bytes())
    restoring.unlink()
    assert {"down-0", "down-1", "down-2", "down-3"} <= set(told(stops_left(log.directory, tmp_path, now_us=0)))


def test_what_hosts_know_is_taken_where_nothing_is_left(log: UpdateLog, tmp_path: Path) -> None:
    stops = Stops(tmp_path / HOSTS / "one" / STOPS)
    stops.save("lost", list(log.read()))
    assert stops_left(None, tmp_path / "elsewhere", now_us=0) == []
    whole = {"down-1": True, "down-2": True, "down-3": True, "spent": 0.0}
    assert told(stops_left(None, tmp_path, now_us=0)) == whole


def test_the_command_begins_a_log_with_what_is_left(built: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    open_store(store).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=built.path)

    def update(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["update", *arguments, "--store", str(store)])
        assert result.exit_code == 0, result.output
        return result.output

    update("--takedown", "ad-1", "--takedown", "ad-2", "--bid", "ad-3=2", "--budget", "ad-4=0")
    (store / "updates" / "log.json").write_bytes(b"{")
    (store / "updates" / "given").unlink()
    output = update("--new-log", "--restore", "ad-2")
    assert "another log is begun, with 3 takedowns and used-up budgets; the one before is in" in output
    said = [(one.ad_id, one.takedown) for one in open_store(store).update_log().read()]
    assert said == [("ad-1", True), ("ad-2", True), ("ad-4", None), ("ad-2", False)]
    shutil.rmtree(store / "updates")
    assert "another log is begun, with 0 takedowns" in update("--new-log")
    assert open_store(store).update_log().end.seq == 0
