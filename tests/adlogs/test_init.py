"""`adsieve init`: its files load, are the presets that they say, and name commands and options that exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import adsieve
from adlogs.init import init_project
from adlogs.simulate import SimulationSummary
from contracts.config import load_config
from contracts.errors import InputError, LogError
from contracts.schema import load_schema
from distill.config import DistillConfig
from distill.gate_limits import Limits
from distill.presets import standard
from heavy_ranker.config import HeavyConfig
from heavy_ranker.presets import small


@pytest.fixture(scope="module")
def project(tiny: tuple[Path, SimulationSummary], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("projects") / "a project"
    written = init_project(place, tiny[0])
    assert written == sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    return place


def commands(script: Path) -> list[list[str]]:
    """The words of every command of adsieve in a script."""
    text = script.read_text().replace("\\\n", " ")
    found = re.findall(r"^\s*(?:once \S+|adsieve) ((?!\(\)).*)$", text, re.MULTILINE)
    lines = [shlex.split(line, comments=True) for line in found if line != '"$@"']
    return [[word for word in words if word != "${data[@]}"] for words in lines]


def test_training_and_limits_are_the_defaults(project: Path) -> None:
    assert load_config(project / "training" / "heavy.yaml", HeavyConfig) == small()
    assert load_config(project / "training" / "towers.yaml", DistillConfig) == standard()
    assert load_config(project / "limits.yaml", Limits) == Limits()


def test_every_command_exists_with_its_options(project: Path) -> None:
    found = commands(project / "nightly.sh")
    assert len(found) >= 13
    for words in found:
        command = typer.main.get_command(adsieve.app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), words
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_the_order_of_a_night(project: Path) -> None:
    """The teacher scores what it has not learned, the student is judged on what it has not learned."""
    found = {" ".join(words[:2]): words for words in commands(project / "nightly.sh")}
    order = ["validate $LOGS", "heavy train", "heavy export", "heavy score", "distill train", "distill publish"]
    order += ["distill evaluate", "index build", "index publish", "index prune"]
    assert [name for name in found if name in order] == order

    def option(command: str, name: str) -> str:
        return found[command][found[command].index(name) + 1]

    assert option("heavy train", "--until") == option("heavy score", "--from") == option("distill train", "--from")
    assert option("distill train", "--until") == option("distill publish", "--from") == "$STUDENT_UNTIL"


def test_schemas_and_settings_come_from_the_log(project: Path, tiny: tuple[Path, SimulationSummary]) -> None:
    heavy, towers = (load_schema(project / "schemas" / f"{name}.yaml") for name in ("heavy", "towers"))
    assert heavy.side_features("pair")
    assert not towers.side_features("pair")
    shown = subprocess.run(
        ["bash", "-c", '. ./.env; echo "$LOGS|$SCENARIOS|$TEACHER_UNTIL|$STUDENT_UNTIL|$ADSIEVE_STORE"'],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    logs, scenarios, teacher, student, store = shown.stdout.strip().split("|")
    assert Path(logs) == tiny[0]
    assert scenarios == "shopping standard"
    assert (teacher, student) == ("2025-03-04T00:00:00Z", "2025-03-05T00:00:00Z")
    assert store == "store"
    assert subprocess.run(["bash", "-n", project / "nightly.sh"], check=False).returncode == 0
    assert "@" not in (project / ".env").read_text() + (project / "README.md").read_text()


def test_without_a_log_it_says_what_to_fill_in(tmp_path: Path) -> None:
    init_project(tmp_path / "new", None)
    assert load_schema(tmp_path / "new" / "schemas" / "towers.yaml").tasks == ("click",)
    assert "--towers --out schemas/towers.yaml" in (tmp_path / "new" / "schemas" / "towers.yaml").read_text()
    assert "Set `LOGS` in `.env`" in (tmp_path / "new" / "README.md").read_text()


def test_what_is_there_stays(tiny: tuple[Path, SimulationSummary], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(InputError, match="mine: is not empty, expected a new or empty directory"):
        init_project(tmp_path / "mine", None)
    with pytest.raises(InputError, match="lies inside --logs"):
        init_project(tiny[0] / "project", tiny[0])
    (tmp_path / "no log").mkdir()
    with pytest.raises(LogError):
        init_project(tmp_path / "other", tmp_path / "no log")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "no log"]
    (tmp_path / "empty").mkdir()
    init_project(tmp_path / "empty", None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_night_of_a_tiny_log(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is but for smaller batches, and floors that so few rows cannot reach; a second call does nothing anew."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    training = project / "training" / "towers.yaml"
    training.write_text(training.read_text().replace("pairs_per_batch: 2048", "pairs_per_batch: 256"))
    floors = ("max_normalised_entropy", "max_calibration_off", "min_recall")
    limits = ["min_auc: 0.0", *(f"{name}: null" for name in floors)]
    (project / "limits.yaml").write_text("\n".join(limits) + "\n")
    for _ in range(2):
        night = subprocess.run([project / "nightly.sh", "first"], capture_output=True, text=True, check=False)
        assert night.returncode == 0, night.stdout + night.stderr
    assert night.stdout.count(" is there\n") == 5 + 2 * 5
    for scenario in ("shopping", "standard"):
        asked = ["adsieve", "rank", f"request-{scenario}.json", "--store", "store"]
        answer = subprocess.run(asked, cwd=project, capture_output=True, text=True, check=True)
        assert answer.stdout
