"""The commands do what their functions do, print it, and fail by exception."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from contracts.errors import ConfigError, InputError
from indexing.cli import app
from indexing.index import Index
from indexing.release_gate import ReleaseRefused


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
    parts = ["--two-tower", bundles / "two_tower", "--index", tmp_path / "index", *store]
    first = json.loads(run("publish", *parts, "--json").stdout)
    assert first["metrics"]["requests"] == 12
    assert 0 < first["metrics"]["unknown_share"] < 0.1
    second = run("publish", *parts)
    assert second.exit_code == 0, second.output
    assert f"index     {summary['version']}" in second.stdout
    assert "overlap 1" in second.stdout
    listed = json.loads(run("list", *store, "--json").stdout)["releases"]
    assert [release["release_id"] for release in listed["shopping"]][1:] == [first["release_id"]]
    assert [release["state"] for release in listed["shopping"]] == ["current", "earlier"]
    assert "current" in run("list", *store, "--scenario", "shopping").stdout
    back = json.loads(run("rollback", *store, "--scenario", "shopping", "--json").stdout)
    assert back == first
    assert isinstance(run("rollback", *store, "--scenario", "shopping").exception, InputError)
    later = listed["shopping"][0]["release_id"]
    assert re.search(rf"aside +{later}", run("list", *store).stdout)
    forward = json.loads(run("rollback", *store, "--scenario", "shopping", "--to", later, "--json").stdout)
    assert forward["release_id"] == later


def test_releases_are_pinned_and_pruned(
    build: list, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*build)
    monkeypatch.setenv("ADSIEVE_STORE", str(tmp_path / "store"))
    parts = ["--two-tower", bundles / "two_tower", "--index", tmp_path / "index"]
    ids = [json.loads(run("publish", *parts, "--json").stdout)["release_id"] for _ in range(4)]
    assert "pinned" in run("pin", ids[0]).stdout
    dry = json.loads(run("prune", "--keep", 2, "--dry-run", "--json").stdout)
    assert dry["releases"] == [ids[1]]
    assert "nothing" not in run("prune", "--keep", 2).stdout
    listed = json.loads(run("list", "--json").stdout)["releases"]["shopping"]
    assert [(one["release_id"], one["state"], one["pinned"]) for one in listed] == [
        (ids[3], "current", False),
        (ids[2], "earlier", False),
        (ids[0], "earlier", True),
        (ids[1], "aside", False),  # its parts are those of the others
    ]
    assert "no longer pinned" in run("unpin", ids[0]).stdout
    assert isinstance(run("unpin", ids[0]).exception, InputError)
    for unknown in ("shopping-20260101T000000Z-abcdef", "shopping", "../x-y-z"):
        assert isinstance(run("pin", unknown).exception, InputError)
    assert run("prune", "--keep", 0).exit_code == 2


def test_a_release_beyond_its_limits_is_refused_or_overridden_on_record(
    build: list, bundles: Path, tmp_path: Path
) -> None:
    run(*build)
    (tmp_path / "limits.yaml").write_text("max_unknown_share: 0.001\nmin_requests: 20\n")
    parts = ["--two-tower", bundles / "two_tower", "--index", tmp_path / "index", "--store", tmp_path / "store"]
    strict = [*parts, "--limits", tmp_path / "limits.yaml"]
    dry = run("publish", *strict, "--dry-run")
    assert dry.exit_code == 1
    assert "would be refused" in dry.stdout
    refused = run("publish", *strict)
    assert isinstance(refused.exception, ReleaseRefused)
    assert "max_unknown_share allows 0.001" in str(refused.exception)
    assert "12 saved requests could be replayed; min_requests asks for 20" in str(refused.exception)
    assert "no release" in run("list", "--store", tmp_path / "store").stdout
    assert isinstance(run("publish", *strict, "--override", " ").exception, InputError)
    taken = json.loads(run("publish", *strict, "--override", "the catalogue was cut", "--json").stdout)
    assert taken["judgement"]["override"] == "the catalogue was cut"
    assert len(taken["judgement"]["failures"]) == 2
    assert "the catalogue was cut" in run("list", "--store", tmp_path / "store").stdout
    needless = json.loads(run("publish", *parts, "--override", "why", "--json").stdout)
    assert needless["judgement"]["override"] is None
    assert needless["judgement"]["against"] == taken["release_id"]


def test_a_damaged_pointer_is_told_and_healed_without_an_editor(build: list, bundles: Path, tmp_path: Path) -> None:
    run(*build)
    store = ["--store", tmp_path / "store"]
    parts = ["--two-tower", bundles / "two_tower", "--index", tmp_path / "index", *store]
    ids = [json.loads(run("publish", *parts, "--json").stdout)["release_id"] for _ in range(2)]
    pointer = tmp_path / "store" / "current" / "shopping.json"
    pointer.write_bytes(pointer.read_bytes()[:-4])
    result = run("list", *store)
    assert result.exit_code == 1
    assert re.search(rf"aside +{ids[1]}", result.stdout)
    assert "shopping.json" in result.stderr
    assert "rollback --scenario shopping --to RELEASE" in result.stderr
    assert json.loads(run("rollback", "--scenario", "shopping", *store, "--json").stdout)["release_id"] == ids[0]
    assert re.search(rf"current +{ids[0]}", run("list", *store).stdout)


@pytest.mark.parametrize("content", ["- 1", "min_overlap: 2", "overlap: 0.5"])
def test_malformed_limits_are_refused(build: list, bundles: Path, tmp_path: Path, content: str) -> None:
    run(*build)
    (tmp_path / "limits.yaml").write_text(content)
    parts = ["--two-tower", bundles / "two_tower", "--index", tmp_path / "index", "--store", tmp_path / "store"]
    result = run("publish", *parts, "--limits", tmp_path / "limits.yaml")
    assert isinstance(result.exception, ConfigError)
    assert "limits.yaml" in str(result.exception)


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
