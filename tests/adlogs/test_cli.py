import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import adsieve
from adlogs.simulate import SimulationSummary
from contracts.schema import load_schema


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command line in this process; returns its exit code."""
    monkeypatch.setattr("sys.argv", ["adsieve", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        adsieve.main()
    return stopped.value.code or 0  # type: ignore[return-value]


def test_simulate_prints_its_summary(
    tiny: tuple[Path, SimulationSummary],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "simulate", tmp_path / "log", "--preset", "tiny", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((tiny[0] / "simulation.json").read_text())
    files = sorted(path.stem for path in (tmp_path / "log" / "requests").glob("*.parquet"))
    assert [summary["first_day"], summary["last_day"]] == [files[0], files[-1]]
    assert run(monkeypatch, "simulate", tmp_path / "log", "--preset", "tiny") == 2
    assert "exists already" in capsys.readouterr().err


def test_simulate_names_the_command_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "simulate", "a log", "--preset", "tiny") == 0
    printed = capsys.readouterr().out
    days = sorted(path.stem for path in (tmp_path / "a log" / "requests").glob("*.parquet"))
    for line in (f"first day {days[0]}", f"last day {days[-1]}"):
        assert line in " ".join(printed.split())
    command = shlex.split(printed.splitlines()[-1])
    assert command[:2] == ["next:", "adsieve"]
    assert run(monkeypatch, *command[2:]) == 0
    assert load_schema(tmp_path / "heavy.yaml").is_fitted
    assert days[0] < command[-1] <= days[-1]


@pytest.mark.parametrize(
    ("until", "code", "message"),
    [
        ("2024-01-01", 2, "error: --until 2024-01-01T00:00:00+00:00: expected a time after the first request of "),
        ("first", 2, "expected a time after the first request"),
        ("after the first", 0, ""),
        ("the last midnight", 0, ""),
        ("later", 0, "warning: --until {until} lies after the last request of "),
    ],
)
def test_an_until_outside_of_the_log_is_told(
    tiny: tuple[Path, SimulationSummary],
    until: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = pq.read_table(tiny[0] / "requests", columns=["event_time"])["event_time"].to_pylist()
    midnight = datetime.combine(max(times).date() + timedelta(days=1), datetime.min.time(), UTC)
    moments = {
        "first": min(times),
        "after the first": midnight - timedelta(days=1),
        "the last midnight": midnight,
        "later": midnight + timedelta(microseconds=1),
    }
    moment = moments[until].isoformat() if until in moments else until
    options = ("--logs", tiny[0], "--out", tmp_path / "s.yaml", "--until", moment)
    assert run(monkeypatch, "schema", "fit", "simulated_heavy", *options) == code
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error", "warning"))]
    assert len(printed) == bool(message)
    assert message.format(until=moment) in "".join(printed)
    assert (tmp_path / "s.yaml").exists() == (code == 0)


def test_unknown_preset_and_unknown_flag_are_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "simulate", tmp_path / "log", "--preset", "huge") == 2
    assert "got 'huge'" in capsys.readouterr().err
    assert run(monkeypatch, "simulate", tmp_path / "log", "--sede", "3") == 2


def test_fit_then_show_then_validate(
    tiny: tuple[Path, SimulationSummary],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fitted, until = tmp_path / "fitted.yaml", "2025-03-05"
    assert (
        run(monkeypatch, "schema", "fit", "simulated_heavy", "--logs", tiny[0], "--out", fitted, "--until", until) == 0
    )
    schema = load_schema(fitted)
    schema.require_fitted()
    capsys.readouterr()
    assert run(monkeypatch, "schema", "show", fitted) == 0
    shown = capsys.readouterr().out
    assert "tasks: click > conversion" in shown
    assert "not fitted: nothing" in shown
    assert all(name in shown for name in schema.features)
    assert run(monkeypatch, "schema", "show", fitted, "--json") == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == schema.fingerprint()
    assert run(monkeypatch, "validate", tiny[0], "--schema", fitted) == 0
    assert "No faults." in capsys.readouterr().out


def test_a_faulty_log_gives_a_table_and_exit_code_2(
    tiny: tuple[Path, SimulationSummary],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("requests", "candidates", "ads"):
        (tmp_path / name).mkdir()
        for file in (tiny[0] / name).iterdir():
            table = pq.read_table(file)
            lacking = ["device"] if name == "requests" else []
            pq.write_table(table.drop_columns(lacking), tmp_path / name / file.name)
    assert run(monkeypatch, "validate", tmp_path, "--schema", "simulated_standard") == 2
    printed = capsys.readouterr()
    assert "device" in printed.out
    assert "column 'device'" in printed.err
    assert run(monkeypatch, "validate", tmp_path, "--schema", "simulated_standard", "--json") == 2
    report = json.loads(capsys.readouterr().out)
    assert {fault["column"] for fault in report["faults"]} == {"device"}
    assert {fault["dataset"] for fault in report["faults"]} == {"requests"}


def test_a_schema_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "schema", "show", "simulated_hevy") == 2
    assert "did you mean" in capsys.readouterr().err


def test_convert_names_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "convert", "kuairand", tmp_path, "--out", tmp_path / "log") == 2
    assert str(tmp_path) in capsys.readouterr().err
