"""What a publish tells or refuses before it changes anything: a heavy ranker switched off, a log of another store."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts.release import Release
from indexing.cli import app
from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.release_gate import ReleaseRefused
from indexing.store import DirectoryStore
from indexing.update_record import Update

Options = dict[str, Path]


def run(store: Path, parts: Options, *more: str) -> dict:
    """``publish --json`` with these parts; its exception where it fails with one."""
    options = [text for name, path in parts.items() for text in (f"--{name}", str(path))]
    result = CliRunner().invoke(app, ["publish", "--store", str(store), *options, *more, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return {**json.loads(result.stdout), "code": result.exit_code}


@pytest.fixture
def lenient(tmp_path: Path) -> list[str]:
    """Limits of a replay that judge nothing."""
    names = ("max_unknown_share", "max_inactive_share", "min_overlap", "max_lacking_share")
    (tmp_path / "limits.yaml").write_text("".join(f"{name}: null\n" for name in names))
    return ["--limits", str(tmp_path / "limits.yaml")]


@pytest.fixture
def bare_index(ads: Path, parts: Path, tmp_path: Path) -> Path:
    """An index without a block for a heavy ranker."""
    out = tmp_path / "bare_index"
    config = IndexConfig(threads=1, precision="fp32")
    build_index(ads=str(ads), two_tower=parts / "two_tower", heavy=None, out=out, config=config)
    return out


def test_a_heavy_bundle_that_was_forgotten_is_refused_and_one_that_was_left_out_is_told(
    parts: Path, publish: Callable[..., Release], bare_index: Path, lenient: list[str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    given = {"two-tower": parts / "two_tower", "index": parts / "index"}
    serving = publish(DirectoryStore(store))
    found = f"no heavy bundle, while {serving.release_id}, which serves, ranks with {serving.heavy}"
    dry = run(store, given, *lenient, "--dry-run")
    assert (dry["refused"], dry["code"]) == (True, 1)
    assert dry["judgement"]["failures"] == [f"{found}, and the index has a block for one: give --heavy"]
    with pytest.raises(ReleaseRefused, match="give --heavy"):
        run(store, given, *lenient)
    assert DirectoryStore(store).current("shopping") == serving
    pointer = store / "current" / "shopping.json"
    pointer.rename(tmp_path / "kept")
    assert run(store, given, *lenient, "--dry-run")["judgement"]["failures"] == dry["judgement"]["failures"]
    (tmp_path / "kept").rename(pointer)
    bare = run(store, {**given, "index": bare_index}, *lenient, "--dry-run")
    assert bare["refused"] is False
    assert bare["judgement"]["warnings"] == [f"{found}: the release ends with the towers"]
    taken = run(store, given, *lenient, "--override", "the heavy ranker is wrong")
    assert taken["heavy"] is None
    assert taken["judgement"]["override"] == "the heavy ranker is wrong"
    again = run(store, given, *lenient)  # nothing is switched off any more
    assert again["judgement"]["failures"] == again["judgement"]["warnings"] == []


def test_an_index_that_merged_the_log_of_another_store_is_told(
    ads: Path, parts: Path, lenient: list[str], tmp_path: Path
) -> None:
    first, second = DirectoryStore(tmp_path / "first"), DirectoryStore(tmp_path / "second")
    position = first.append_updates([Update(ad_id="ad-1", at=5, takedown=True)])
    build_index(
        ads=str(ads),
        two_tower=parts / "two_tower",
        heavy=None,
        out=tmp_path / "merged",
        config=IndexConfig(threads=1, precision="fp32"),
        updates=first.update_log(),
    )
    given = {"two-tower": parts / "two_tower", "index": tmp_path / "merged"}
    own = run(first.root, given, *lenient)
    assert own["judgement"]["warnings"] == []
    (told,) = run(second.root, given, *lenient, "--dry-run")["judgement"]["warnings"]
    assert f"number {position.seq} of log {position.log}, and this store has no log of updates" in told
    assert "--new-log" in told
    assert run(second.root, given, *lenient)["judgement"]["warnings"] == [told]
    other = second.append_updates([])
    (told,) = run(second.root, given, *lenient)["judgement"]["warnings"]
    assert f"of log {position.log}, which is not this store's, {other.log}" in told
