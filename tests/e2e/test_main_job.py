"""The main job as a user runs it: one command from nothing to ranked ads, on the smallest simulated world."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.parity import BF16_GATE

SCENARIOS = ("standard", "shopping")


def adsieve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "adsieve", *arguments], capture_output=True, text=True, check=False)


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
        assert _by_ad(ranked["ads"], "light") == _by_ad(answered["ads"], "light")
        exact, served = _by_ad(ranked["ads"], "heavy"), _by_ad(answered["ads"], "heavy")
        assert exact.keys() == served.keys()
        for ad, probabilities in exact.items():  # the server's engine may compute in BF16, the command's never does
            assert served[ad] == pytest.approx(probabilities, abs=BF16_GATE.tolerance)
        assert ranked["dropped"] == answered["dropped"]
        assert ranked["release"] == answered["release"]


def _by_ad(ads: dict[str, Any], stage: str) -> dict[str, dict[str, float]]:
    return {ad: {task: values[at] for task, values in ads[stage].items()} for at, ad in enumerate(ads["ids"])}


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
    listed = json.loads(adsieve("index", "list", *store, "--json").stdout)
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
