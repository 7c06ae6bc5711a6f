"""A build tells where its store holds nothing, or lost updates: mostly a wrong path."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from contracts.errors import InputError
from indexing.cli import app
from indexing.store import DirectoryStore
from indexing.update_record import Update


@pytest.fixture
def build(ads: Path, bundles: Path, tmp_path: Path) -> list[object]:
    parts = ["--two-tower", bundles / "two_tower", "--heavy", bundles / "heavy"]
    return ["build", "--ads", ads, *parts, "--engine", "onnxruntime_cpu", "--out", tmp_path / "index"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("made", [False, True])
def test_a_store_without_anything_is_told(build: list, tmp_path: Path, made: bool) -> None:
    store = tmp_path / "stoer"
    if made:
        store.mkdir()
    built = run(*build, "--store", store, "--json")
    assert built.exit_code == 0, built.output
    expected = f"--store {store}: holds no release and no updates yet, so none are merged"
    assert f"warning: {expected}" in built.stderr
    assert json.loads(built.stdout)["warnings"][-1] == expected
    assert store.exists() == made


def test_a_directory_of_something_else_is_no_store(build: list, bundles: Path, tmp_path: Path) -> None:
    refused = run(*build, "--store", bundles)
    assert isinstance(refused.exception, InputError)
    assert f"--store {bundles}: holds heavy, two_tower and is no store" in str(refused.exception)
    assert not (tmp_path / "index").exists()


def test_a_store_with_updates_before_its_first_release_is_one(build: list, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.append_updates([Update(ad_id="ad-1", at=0, takedown=True), Update(ad_id="ad-2", at=0, takedown=True)])
    assert "warning: --store" not in run(*build, "--store", tmp_path / "store").stderr
    segment = next((tmp_path / "store" / "updates").glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b"ad-1", b"ad-9"))
    again = run(*build[:-1], tmp_path / "again", "--store", tmp_path / "store", "--json")
    assert again.exit_code == 0, again.output
    assert f"warning: {segment}: line 1: 1 damaged lines in all" in again.stderr
    assert "1 damaged lines in all" in json.loads(again.stdout)["warnings"][-1]


def test_an_empty_redis_is_told(build: list, server: Any, tmp_path: Path) -> None:
    built = run(*build, "--store", server.url, "--local", tmp_path / "mirror")
    assert built.exit_code == 0, built.output
    assert f"warning: --store {server.url}: holds no release and no updates yet" in built.stderr
