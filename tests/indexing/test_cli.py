"""The commands do what their functions do, print it, and fail by exception."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from contracts.errors import ConfigError, InputError
from indexing.cli import app
from indexing.index import Index


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def build(ads: Path, bundles: Path, tmp_path: Path) -> list[object]:
    parts = ["--two-tower", bundles / "two_tower", "--heavy", bundles / "heavy"]
    return ["build", "--ads", ads, *parts, "--out", tmp_path / "index", "--threads", 1]


def test_build_publish_list_and_rollback(build: list, bundles: Path, tmp_path: Path) -> None:
    built = run(*build, "--json")
    assert built.exit_code == 0, built.output
    summary = json.loads(built.stdout)
    assert summary["num_ads"] == 160
    assert summary["version"] == Index.open(tmp_path / "index").manifest.version

    store = ["--store", tmp_path / "store"]
    assert "no release" in run("list", *store).stdout
    parts = ["--two-tower", bundles / "two_tower", "--heavy", bundles / "heavy", "--index", tmp_path / "index"]
    first = json.loads(run("publish", *parts, *store, "--json").stdout)
    second = run("publish", *parts, *store)
    assert second.exit_code == 0
    assert f"index     {summary['version']}" in second.stdout
    listed = json.loads(run("list", *store, "--json").stdout)
    assert [release["release_id"] for release in listed["shopping"]][1:] == [first["release_id"]]
    assert "current" in run("list", *store, "--scenario", "shopping").stdout
    back = json.loads(run("rollback", *store, "--scenario", "shopping", "--json").stdout)
    assert back == first
    assert isinstance(run("rollback", *store, "--scenario", "shopping").exception, InputError)


def test_a_summary_for_people_names_what_is_missing(build: list) -> None:
    output = run(*build).stdout
    assert "160 ads as of" in output
    assert "two_tower missing: category" in output
    assert "two_tower out of vocabulary: category" in output


def test_options_take_precedence_over_the_file(build: list, tmp_path: Path) -> None:
    (tmp_path / "index.yaml").write_text("precision: fp32\nmax_dropped_share: 0.5\n")
    assert run(*build, "--config", tmp_path / "index.yaml").exit_code == 0
    assert Index.open(tmp_path / "index").manifest.precision == "fp32"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["--precision", "int4"], ConfigError, "options: precision"),
        (["--max-dropped-share", "2"], ConfigError, "options: max_dropped_share"),
        (["--ads", "nowhere"], InputError, "nowhere: no Parquet file here"),
    ],
)
def test_wrong_options_are_refused(build: list, options: list[str], error: type, message: str) -> None:
    result = run(*build, *options)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_a_time_that_is_none_is_wrong_usage(build: list) -> None:
    result = run(*build, "--as-of", "yesterday")
    assert result.exit_code == 2
    assert "yesterday" in result.output


def test_unknown_flags_fail() -> None:
    assert run("build", "--nonsense").exit_code == 2


@pytest.mark.parametrize("content", ["- 1", "precison: fp32"])
def test_malformed_settings_are_refused(build: list, tmp_path: Path, content: str) -> None:
    (tmp_path / "index.yaml").write_text(content)
    result = run(*build, "--config", tmp_path / "index.yaml")
    assert isinstance(result.exception, ConfigError)
    assert str(tmp_path / "index.yaml") in str(result.exception)
