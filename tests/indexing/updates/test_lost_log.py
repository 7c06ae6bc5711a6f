"""A log of updates that is gone is not begun anew unasked, and a takedown goes through whatever else is damaged."""

import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.artifact import READY
from contracts.errors import ArtifactError, InputError
from indexing.cli import app
from indexing.lost_log import NOTE
from indexing.overlay_start import TakedownsUnknownError
from indexing.overlay_stops import HOSTS, STOPS, Stops
from indexing.overlay_writer import OverlayWriter
from indexing.stores import open_store

FEATURES = {"category": "shoes", "price": 3.5, "image": [0.5, 0.25]}
CONTENT = {"scenario": "shopping", "features": FEATURES}


@pytest.fixture
def store(built: Any, tmp_path: Path) -> Path:
    """A store with one release, whose index has merged no update."""
    root = tmp_path / "store"
    open_store(root).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=built.path)
    return root


@pytest.fixture
def update(store: Path) -> Callable[..., str]:
    """Runs the command and gives its output."""

    def run(*arguments: str, given: bytes = b"") -> str:
        result = CliRunner().invoke(app, ["update", *arguments, "--store", str(store)], input=given)
        if result.exception is not None:
            raise result.exception
        return result.output

    return run


def states(store: Path) -> list[tuple[str, bool | None]]:
    return [(one.ad_id, one.takedown) for one in open_store(store).update_log().read()]


def test_a_log_that_no_index_has_merged_is_missed_by_its_note(store: Path, update: Callable[..., str]) -> None:
    update("--takedown", "ad-1")
    log = open_store(store).update_log().id
    shutil.rmtree(store / "updates")
    for _ in range(2):
        with pytest.raises(
            ArtifactError, match=rf"the log of updates {log}, which .*{NOTE} tells of, is gone; .*--new-log"
        ):
            update("--bid", "ad-2=1")
    assert not (store / "updates" / "log.json").exists()
    output = update("--new-log", "--takedown", "ad-1")
    assert "another log is begun, with 0" in output
    assert "is gone" not in output
    update("--bid", "ad-2=1")
    assert states(store) == [("ad-1", True), ("ad-2", None)]
    again = open_store(store).update_log().id
    shutil.rmtree(store / "updates")
    with pytest.raises(ArtifactError, match=f"the log of updates {again}"):
        update("--bid", "ad-2=1")


def test_a_note_that_cannot_be_read_tells_of_a_log_all_the_same(store: Path, update: Callable[..., str]) -> None:
    update("--takedown", "ad-1")
    (store / NOTE).write_bytes(b"\xff")
    shutil.rmtree(store / "updates")
    with pytest.raises(ArtifactError, match=r"the log of updates \(unknown\)"):
        update("--bid", "ad-2=1")


def test_the_note_is_there_before_the_first_update_is(
    store: Path, update: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("indexing.store.note_log", fail)
    with pytest.raises(OSError, match="No space"):
        update("--takedown", "ad-1")
    assert states(store) == []


def test_what_a_host_knows_tells_of_a_log(store: Path, update: Callable[..., str]) -> None:
    update("--takedown", "ad-1")
    Stops(store / HOSTS / "one" / STOPS).save("x", open_store(store).update_log().read())
    shutil.rmtree(store / "updates")
    (store / NOTE).unlink()
    with pytest.raises(ArtifactError, match="of which .*one/stops holds what it had stopped, is gone"):
        update("--bid", "ad-2=1")
    assert "with 1 takedowns" in update("--new-log")
    assert states(store) == [("ad-1", True)]


def test_an_index_that_no_pointer_reaches_tells_of_a_log(
    built: Any, store: Path, update: Callable[..., str], tmp_path: Path
) -> None:
    index = tmp_path / "merged"
    shutil.copytree(built.path, index)
    data = json.loads((index / "manifest.json").read_bytes())
    manifest = json.dumps(data | {"updates": {"log": "lost", "seq": 7}, "version": "index-x"}).encode()
    (index / "manifest.json").write_bytes(manifest)
    (index / READY).write_text(hashlib.sha256(manifest).hexdigest())
    first = open_store(store).current("shopping")
    open_store(store).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=index)
    open_store(store).rollback("shopping", first.release_id)
    with pytest.raises(ArtifactError, match="the log of updates lost, which index index-x holds up to number 7"):
        update("--bid", "ad-2=1")


def test_a_host_that_knows_nothing_does_not_serve_an_index_without_updates(
    built: Any, store: Path, update: Callable[..., str], tmp_path: Path
) -> None:
    update("--takedown", "ad-1")
    shutil.rmtree(store / "updates")

    def begin(**options: Any) -> OverlayWriter:
        log = open_store(store).update_log()
        return OverlayWriter(built.index, built.two_tower, built.heavy, log, tmp_path / "overlay", **options)

    with pytest.raises(TakedownsUnknownError):
        begin(stops=Stops(tmp_path / "stops"))
    begin(allow_unknown=True).close()


def test_build_publish_and_list_tell_of_a_log_that_is_gone(
    built: Any, store: Path, update: Callable[..., str], tmp_path: Path
) -> None:
    update("--takedown", "ad-1")
    shutil.rmtree(store / "updates")
    result = CliRunner().invoke(app, ["list", "--store", str(store)])
    assert "is gone; restore it, or begin another" in result.output
    paths = ["--two-tower", str(built.two_tower.path), "--heavy", str(built.heavy.path)]
    ads = str(built.path.parent / "ads.parquet")
    out = ["--out", str(tmp_path / "out"), "--engine", "onnxruntime_cpu", "--precision", "fp32"]
    result = CliRunner().invoke(app, ["build", "--ads", ads, *paths, *out, "--store", str(store)])
    assert result.exit_code == 0, result.output
    assert "is gone; restore it, or begin another" in result.output


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_takedown_goes_through_where_the_pointer_cannot_be_read(
    store: Path, update: Callable[..., str], damage: str
) -> None:
    for folder in ("current", "copies"):
        (path := store / folder / "shopping.json").write_bytes(b"{")
        if damage == "gone":
            path.unlink()
    output = update("--takedown", "ad-1", "--status", "ad-2=paused", "--bid", "ad-3=1", "--budget", "ad-4=0")
    assert "4 updates, 0 of them" in output
    assert [ad_id for ad_id, _ in states(store)] == ["ad-1", "ad-2", "ad-3", "ad-4"]
    with pytest.raises((InputError, ArtifactError)):
        update("-", given=json.dumps({"ad_id": "new", "content": CONTENT}).encode())


def test_a_takedown_goes_through_where_the_index_is_gone(store: Path, update: Callable[..., str]) -> None:
    for path in (store / "indexes").iterdir():
        shutil.rmtree(path)
    update("--takedown", "ad-1")
    assert states(store) == [("ad-1", True)]


def test_content_that_does_not_count_is_told(store: Path, update: Callable[..., str], built: Any) -> None:
    def moment(micros: int) -> str:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()

    def line(ad_id: str, valid_from: int) -> bytes:
        return json.dumps({"ad_id": ad_id, "content": CONTENT | {"valid_from": moment(valid_from)}}).encode() + b"\n"

    of_row = built.catalogue["ad-1"]["valid_from"]
    output = update("-", given=line("ad-1", of_row) + line("ad-1", of_row + 2000) + line("new", 2000))
    assert "1 contents are not later than what the ad has and do not count: ad-1\n" in output
    output = update("-", given=line("ad-1", of_row + 2000) + line("new", 2000) + line("new", 3000) + line("new", 3000))
    assert "3 contents are not later than what the ad has and do not count: ad-1, new, new\n" in output
    assert "do not count" not in update("-", given=line("new", 4000))


def test_a_comma_in_an_unknown_ad_is_hinted_at(store: Path, update: Callable[..., str]) -> None:
    hint = "a comma does not part ads, give each with an option of its own: ad-1,ad-2"
    assert hint in update("--takedown", "ad-1,ad-2")
    assert "does not part" not in update("--takedown", "ad-1", "--takedown", "typo")


def test_a_store_that_lost_its_releases_still_takes_a_takedown(store: Path, update: Callable[..., str]) -> None:
    for folder in ("current", "copies", "releases"):
        shutil.rmtree(store / folder)
    assert "no release here, so no ad is known to it" in update("--takedown", "ad-1")
    assert states(store) == [("ad-1", True)]
    with pytest.raises(InputError, match="has no release"):
        update("-", given=json.dumps({"ad_id": "new", "content": CONTENT}).encode())


def test_a_publish_notes_the_log_of_a_store_without_a_note(built: Any, store: Path, update: Callable[..., str]) -> None:
    update("--takedown", "ad-1")
    (store / NOTE).unlink()
    open_store(store).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=built.path)
    shutil.rmtree(store / "updates")
    with pytest.raises(ArtifactError, match="is gone"):
        update("--bid", "ad-2=1")
