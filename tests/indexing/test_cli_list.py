"""`index list` fits a terminal, and tells of a log of updates that lost something, as `publish` does."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from contracts.errors import ArtifactError, InputError
from contracts.release import Judgement
from indexing.cli import app
from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.store import DirectoryStore
from indexing.update_record import Update


def run(*arguments: object, columns: int = 80) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})


@pytest.fixture
def publish_options(ads: Path, bundles: Path, tmp_path: Path) -> list[object]:
    build_index(
        ads=str(ads),
        two_tower=bundles / "two_tower",
        heavy=None,
        out=tmp_path / "index",
        config=IndexConfig(threads=1, precision="fp32"),
    )
    return ["--two-tower", bundles / "two_tower", "--index", tmp_path / "index", "--store", tmp_path / "store"]


def test_every_line_fits_and_every_fact_is_there(publish_options: list, bundles: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    parts = {"two_tower": bundles / "two_tower", "heavy": None, "index": tmp_path / "index"}
    metrics = {"overlap": 0.25, **{f"calibration_current.{head}": 1.5 for head in ("click", "conversion")}}
    reason = "a reason of many words, longer than one line of a terminal is, so that it has to be folded somewhere"
    first = store.publish(**parts, metrics=metrics, judgement=Judgement(override=reason))
    second = store.publish(**parts)
    store.pin("shopping", first.release_id)
    for columns in (80, 100, 120):
        output = run("list", "--store", tmp_path / "store", columns=columns).stdout
        assert max(map(len, output.splitlines())) <= columns
        left = output.splitlines()[0].index("release, its")
        words = " ".join(line[left:].strip() for line in output.splitlines())
        facts = [
            *(first.release_id, second.release_id, first.two_tower, first.index, "no heavy bundle"),
            *("overlap 0.25; calibration_current: click 1.5, conversion 1.5", f"published all the same: {reason}"),
        ]
        assert [fact for fact in facts if fact not in words] == []
        assert "earlier, pinned" in output


def test_a_damaged_log_is_told_by_list_and_publish(publish_options: list, tmp_path: Path) -> None:
    store = ["--store", tmp_path / "store"]
    assert run("publish", *publish_options).exit_code == 0
    DirectoryStore(tmp_path / "store").append_updates([Update(ad_id=f"ad-{n}", at=0, takedown=True) for n in range(3)])
    assert json.loads(run("list", *store, "--json").stdout)["warnings"] == []
    segment = next((tmp_path / "store" / "updates").glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b"ad-1", b"ad-9"))
    expected = f"{segment}: line 2: 1 damaged lines in all, their updates are lost: say them again"
    listed = run("list", *store, "--json")
    assert listed.exit_code == 0
    assert json.loads(listed.stdout)["warnings"] == [expected]
    assert f"warning: {expected}" in run("list", *store).stderr
    assert expected in run("publish", *publish_options, "--dry-run").stdout
    assert f"warning: {expected}" in run("publish", *publish_options).stdout
    published = json.loads(run("publish", *publish_options, "--json").stdout)
    assert expected in published["judgement"]["warnings"]


@pytest.mark.parametrize("damage", ["manifest", "segment"])
def test_a_log_that_cannot_be_read_fails_the_list_and_refuses_a_publish(
    publish_options: list, tmp_path: Path, damage: str
) -> None:
    store = ["--store", tmp_path / "store"]
    run("publish", *publish_options)
    DirectoryStore(tmp_path / "store").append_updates([Update(ad_id="ad", at=0, takedown=True)])
    updates = tmp_path / "store" / "updates"
    path = updates / "log.json" if damage == "manifest" else next(updates.glob("*.jsonl"))
    path.write_text("{") if damage == "manifest" else path.unlink()
    listed = run("list", *store, "--json")
    assert listed.exit_code == 1
    told = json.loads(listed.stdout)
    assert [one["state"] for one in told["releases"]["shopping"]] == ["current"]
    assert str(path) in told["warnings"][0]
    assert "restore the directory from a backup" in told["warnings"][0]
    assert told["warnings"][0] in listed.stderr
    refused = run("publish", *publish_options)
    assert isinstance(refused.exception, ArtifactError)
    assert str(path) in str(refused.exception)
    assert len(DirectoryStore(tmp_path / "store").list("shopping")) == 1


def test_a_rollback_says_which_way_it_went(publish_options: list, tmp_path: Path) -> None:
    store = ["--store", tmp_path / "store"]
    ids = [json.loads(run("publish", *publish_options, "--json").stdout)["release_id"] for _ in range(2)]
    go = ["rollback", "--scenario", "shopping", *store]
    assert run(*go).stdout.startswith(f"shopping: rolled back to {ids[0]}\n")
    assert run(*go, "--to", ids[0]).stdout.startswith(f"shopping: stays at {ids[0]}\n")
    assert run(*go, "--to", ids[1]).stdout.startswith(f"shopping: gone forward to {ids[1]}\n")
    (tmp_path / "store" / "current" / "shopping.json").write_text("{")
    assert run(*go, "--to", ids[0]).stdout.startswith(f"shopping: set to {ids[0]}\n")


def test_what_is_not_there_is_told(publish_options: list, tmp_path: Path) -> None:
    store = ["--store", tmp_path / "store"]
    assert f"{tmp_path / 'store'}: no such directory, so no release" in run("list", *store).stdout
    run("publish", *publish_options)
    unknown = run("list", *store, "--scenario", "standard").exception
    assert isinstance(unknown, InputError)
    assert str(unknown) == f"--scenario standard: has no release in {tmp_path / 'store'}; expected one of 'shopping'"
