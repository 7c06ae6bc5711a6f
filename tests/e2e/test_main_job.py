"""The main job as a user runs it: one command from nothing to ranked ads, on the smallest simulated world."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = ("standard", "shopping")


EXACT = {"ADSIEVE_HEAVY_ENGINE": "onnxruntime_cpu", "ADSIEVE_QUERY_ENGINE": "onnxruntime_cpu"}
"""The command's own engine; `auto` may serve in BF16, within a gate that tests/service checks."""


def adsieve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adsieve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | EXACT)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "demo"
    done = adsieve("demo", "--preset", "tiny", "--out", str(out))
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def test_every_scenario_and_a_mixed_list_get_ranked_ads(made: Path) -> None:
    for name in (*SCENARIOS, "auto"):
        request = json.loads((made / f"request-{name}.json").read_text())
        answer = json.loads((made / f"answer-{name}.json").read_text())
        ids, utilities = answer["ads"]["ids"], answer["ads"]["utilities"]
        assert ids
        assert set(ids) <= set(request["candidates"]["ids"])
        assert utilities == sorted(utilities, reverse=True)
        assert answer["degraded"] is None
    assert set(answer["release"]) == set(SCENARIOS)
    assert set(answer["ads"]["scenarios"]) == set(SCENARIOS)


def test_the_command_ranks_as_the_server_did(made: Path) -> None:
    for name in (*SCENARIOS, "auto"):
        done = adsieve("rank", str(made / f"request-{name}.json"), "--store", str(made / "store"), "--json")
        assert done.returncode == 0, done.stderr
        ranked, answered = json.loads(done.stdout), json.loads((made / f"answer-{name}.json").read_text())
        assert ranked["ads"] == answered["ads"]
        assert ranked["dropped"] == answered["dropped"]
        assert ranked["release"] == answered["release"]


def test_the_summary_has_the_figures_of_each_scenario(made: Path) -> None:
    summary = json.loads((made / "summary.json").read_text())
    found = {(row["scenario"], row["slice"], row["head"]) for row in summary["quality"]}
    heads = ("click", "conversion")
    assert found == {(s, part, head) for s in SCENARIOS for part in ("winners", "candidates") for head in heads}
    assert all(row["kl"] >= 0 for row in summary["quality"])
    for scenario in SCENARIOS:
        assert (made / scenario / "report" / "report.html").stat().st_size > 1_000


def test_a_demo_never_replaces_what_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("kept")
    done = adsieve("demo", "--preset", "tiny", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "holds something else than an earlier demo" in done.stderr
    assert (tmp_path / "precious.txt").read_text() == "kept"


def test_a_demo_that_cannot_begin_leaves_the_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    out.mkdir()
    (out / ".adsieve-demo").touch()
    (out / "summary.json").write_text("kept")
    done = adsieve("demo", "--kuairand", str(tmp_path / "nowhere"), "--out", str(out))
    assert done.returncode == 2
    assert (out / "summary.json").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]


def test_the_simulated_log_is_valid(made: Path) -> None:
    done = adsieve("validate", str(made / "log"), "--schema", str(made / "heavy.yaml"))
    assert done.returncode == 0, done.stdout


def test_releases_are_listed_and_rolled_back(made: Path) -> None:
    store = ("--store", str(made / "store"))
    listed = json.loads(adsieve("index", "list", *store, "--json").stdout)["releases"]
    assert {name: len(releases) for name, releases in listed.items()} == dict.fromkeys(SCENARIOS, 1)
    refused = adsieve("index", "rollback", "--scenario", "standard", *store)
    assert refused.returncode == 2
    assert "standard" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "x", "--sed", "7"), "No such option: --sed"),
        (("simulate", "x", "--preset", "huge"), "preset: expected one of tiny, demo, million, large, got 'huge'"),
        (("rank", "missing.json", "--store", "nowhere"), "missing.json: no such file"),
        (("demo", "--kuairand", "nowhere", "--out", "unused"), "nowhere"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = adsieve(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
