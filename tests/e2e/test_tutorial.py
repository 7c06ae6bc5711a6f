"""The tutorial leads from a folder of CSV files to a ranked answer: its commands run in order, as they stand there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import adsieve
from adlogs.simulate import simulate
from loading import load

PAGE = Path(adsieve.__file__).parent / "docs" / "tutorial.md"
LINE = re.compile(r"^    \$ ((?:.*\\\n)*.*)$", re.MULTILINE)
COMMANDS = [line.replace("\\\n", " ") for line in LINE.findall(PAGE.read_text())]
EXCERPTS = [
    line.split("...")[0].strip()
    for block in re.findall(r"```(?:yaml|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory with the folder of CSV files: the real log, or a simulated one where that is not at hand."""
    exports = load("e2e/csv_exports.py")
    directory = tmp_path_factory.mktemp("tutorial")
    source = os.environ.get("ADSIEVE_KUAIRAND")
    if source and (Path(source) / "kuairand_impressions.parquet").exists():
        exports.write_real_log(Path(source), directory / "exports", every=8)
    else:
        simulate(directory / "simulated", "demo", None)
        exports.write_simulated_log(directory / "simulated", directory / "exports", every=4)
    return directory


def run(place: Path, command: str) -> str:
    """Run one line in a shell, with our command first in its path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    shell = ["bash", "-c", command]
    done = subprocess.run(shell, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def winners(report: dict[str, Any], model: str) -> dict[str, Any]:
    """Figures of the click of what was shown, against labels, on the days that judge."""
    (row,) = [
        row
        for row in report["evaluations"][0]["slices"]
        if (row["model"], row["against"], row["stage"], row["slice"], row["head"])
        == (model, "labels", "winners", "all", "click")
    ]
    return row


def test_the_page_has_commands_and_shows_what_they_print() -> None:
    assert len(COMMANDS) >= 9
    assert len(EXCERPTS) >= 15
    assert COMMANDS[0].startswith("adsieve convert csv exports --propose")


@pytest.mark.docs
@pytest.mark.timeout(1800)
def test_from_csv_files_to_a_ranked_answer(place: Path) -> None:
    printed = "".join(run(place, command) for command in COMMANDS)
    if (place / "exports" / "clips.csv").exists():
        written = [place / "mapping.yaml.bak", *(place / "shop" / "schemas").glob("*.yaml")]
        printed += "".join(path.read_text() for path in written)
        assert [line for line in EXCERPTS if line not in printed] == []
    catalogue = set(pq.read_table(place / "logs" / "ads", columns=["ad_id"])["ad_id"].to_pylist())
    request = json.loads((place / "shop" / "request-standard.json").read_text())
    answer = json.loads((place / "answer.json").read_text())
    ads = answer["ads"]
    assert ads["ids"]
    assert set(ads["ids"]) <= catalogue & set(request["candidates"]["ids"])
    assert ads["utilities"] == sorted(ads["utilities"], reverse=True)
    assert answer["degraded"] is None
    assert not answer["warnings"]
    assert set(ads["heavy"]) == set(ads["light"]) == set(answer["ads"]["heavy"])
    for name, values in ads["heavy"].items():
        assert all(0 < value < 1 for value in values), name
    report = json.loads((place / "shop" / "nights" / "first" / "standard" / "report" / "report.json").read_text())
    for model in ("student", "teacher"):
        assert winners(report, model)["auc"] > 0.6, model
    leaks = ("watched_ms", "profile_ms", "seconds_on_site")
    for schema in ("heavy", "towers"):
        assert not re.search("|".join(leaks), (place / "shop" / "schemas" / f"{schema}.yaml").read_text())
