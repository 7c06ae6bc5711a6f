"""No command writes into what it reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import adsieve
from contracts.apart import ApartCommand

LOGS, OUT = "--logs", "--out"
COMMANDS = {
    "convert csv": ("SOURCE",),
    "convert kuairand": ("SOURCE",),
    "demo": ("--kuairand",),
    "schema fit": (LOGS,),
    "schema infer": ("LOGS",),
    "heavy train": (LOGS, "--warm-start"),
    "heavy evaluate": (LOGS, "--run"),
    "heavy export": (LOGS, "--run"),
    "heavy score": (LOGS, "--bundle", "--series"),
    "heavy scale": (LOGS,),
    "distill train": (LOGS, "--candidates", "--warm-start"),
    "distill evaluate": (LOGS, "--candidates", "--bundle"),
    "distill publish": (LOGS, "--candidates", "--run", "--against"),
    "distill skew": (LOGS, "--candidates", "--query", "--pins"),
    "index build": ("--ads", "--two-tower", "--heavy"),
    "index reencode": ("--index", "--heavy", "--ads"),
    "index export": ("--index",),
}
OPTIONAL = ("--bundle", "--series", "--warm-start", "--against")
OTHERS = {
    "heavy train": ("--schema", "s.yaml"),
    "heavy scale": ("--schema", "s.yaml", "--until", "2026-01-01"),
    "distill train": ("--schema", "s.yaml", "--scenario", "standard"),
    "schema fit": ("simulated_heavy",),
}


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield " ".join(words), command


ALL = dict(leaves(typer.main.get_command(adsieve.app)))


def test_every_command_that_writes_and_reads_directories_is_held_apart() -> None:
    writing = {name for name, command in ALL.items() if any(OUT in parameter.opts for parameter in command.params)}
    assert writing == set(COMMANDS)
    assert all(isinstance(ALL[name], ApartCommand) for name in writing)


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, options in COMMANDS.items() for option in options]
)
@pytest.mark.parametrize(
    ("read", "written", "words"),
    [
        ("work/read", "work/read", "is the same as"),
        ("work/read", "work/read/deep/new", "lies inside"),
        ("work/read", "work", "holds"),
        ("work/read", "link/new", "lies inside"),
        ("link", "work/read", "is the same as"),
    ],
)
def test_out_is_apart_from_what_is_read(
    command: str,
    option: str,
    read: str,
    written: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work" / "read").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "work" / "read")
    values = {name: "absent" for name in COMMANDS[command] if name not in OPTIONAL}
    for name in ("--two-tower", "--heavy", "--bundle", "--query", "--pins", "--index"):
        if name in values or (name == "--bundle" and command == "distill evaluate"):
            (tmp_path / name.strip("-")).mkdir()
            values[name] = name.strip("-")
    values[option] = read
    given = [word for name, value in values.items() for word in ((value,) if name.isupper() else (name, value))]
    monkeypatch.setattr("sys.argv", ["adsieve", *command.split(), *given, *OTHERS.get(command, ()), OUT, written])
    with pytest.raises(SystemExit) as stopped:
        adsieve.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        f"error: --out {written}: {words} {option} {read}, which is read\nnext: choose an --out apart from {read}\n"
    )
    assert not list((tmp_path / "work" / "read").iterdir())


def test_of_a_glob_its_fixed_part_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ads/2025", "towers"):
        (tmp_path / name).mkdir(parents=True)
    words = ["index", "build", "--ads", "ads/2025/*.parquet", "--two-tower", "towers", OUT, "ads/2025/index"]
    monkeypatch.setattr("sys.argv", ["adsieve", *words])
    with pytest.raises(SystemExit):
        adsieve.main()
    assert "--out ads/2025/index: lies inside --ads ads/2025, which is read" in capsys.readouterr().err


def test_a_place_beside_is_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that begins like that of the log, and a name of a scenario that is a directory too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").mkdir()
    (tmp_path / "shopping").mkdir()
    words = ["distill", "train", LOGS, "log", "--schema", "s.yaml", "--scenario", "shopping", OUT, "shopping"]
    for out in ("shopping", "log-run"):
        monkeypatch.setattr("sys.argv", ["adsieve", *words[:-1], out])
        with pytest.raises(SystemExit):
            adsieve.main()
        assert "s.yaml: no such file" in capsys.readouterr().err
