"""One look on a terminal: commands are explained, quiet and JSON mean what they say, errors tell what to do next."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import adsieve
import adsieve_terminal
from adlogs.cli import PRESETS as WORLDS
from adlogs.presets import PRESETS as ALL_WORLDS
from contracts.errors import AdsieveError
from distill.cli_train import PRESET_NAMES as STUDENTS
from distill.presets import PRESETS as ALL_STUDENTS
from heavy_ranker.cli import PRESET_NAMES as TEACHERS
from heavy_ranker.presets import PRESETS as ALL_TEACHERS

ESCAPE = "\x1b"
Door = Callable[..., tuple[int, str, str]]


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield " ".join((*words, name)), inner
        yield from leaves(inner, (*words, name))


ALL = dict(leaves(typer.main.get_command(adsieve.app)))
COMMANDS = {name: command for name, command in ALL.items() if not hasattr(command, "commands")}


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Door:
    """Runs the command line; exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["adsieve", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            adsieve.main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from adlogs.simulate import simulate

    path = tmp_path_factory.mktemp("terminal") / "log"
    simulate(path, "tiny", None)
    return path


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_is_explained(name: str) -> None:
    assert ALL[name].help
    assert [parameter.name for parameter in ALL[name].params if not parameter.help] == []


def test_every_command_can_be_quiet_and_print_json() -> None:
    """A server prints no result: its answers are JSON, and --log-format is what its lines are."""
    options = {name: {option for one in command.params for option in one.opts} for name, command in COMMANDS.items()}
    assert [name for name, known in options.items() if "--quiet" not in known] == []
    assert [name for name, known in options.items() if "--json" not in known] == ["serve"]


def test_an_option_is_called_the_same_everywhere() -> None:
    """Of two options with one name, both are flags or both take a value; and one thing has one name."""
    kinds: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                kinds.setdefault(parameter.opts[0], set()).add("flag" if parameter.is_flag else "value")
    assert {name for name, found in kinds.items() if len(found) > 1} == set()
    assert not {"--output", "--out-dir", "--destination", "--format", "--verbose"} & set(kinds)


def commands_with_a_result(log: Path) -> dict[str, tuple[object, ...]]:
    return {
        "simulate": ("simulate", "made", "--preset", "tiny"),
        "validate": ("validate", log, "--schema", "simulated_heavy"),
        "fit": ("schema", "fit", "simulated_standard", "--logs", log, "--out", "fitted.yaml"),
        "show": ("schema", "show", "simulated_standard"),
        "list": ("index", "list", "--store", "absent"),
    }


@pytest.mark.parametrize("name", commands_with_a_result(Path()))
def test_json_is_all_of_standard_output_and_quiet_prints_nothing(name: str, log: Path, door: Door) -> None:
    words = commands_with_a_result(log)[name]
    code, out, _ = door(*words, "--json")
    assert code == 0
    assert isinstance(json.loads(out), dict)
    (Path.cwd() / "made").rename("before") if name == "simulate" else None
    code, out, err = door(*words, "--json", "--quiet")
    assert code == 0
    assert isinstance(json.loads(out), dict)
    assert err == ""
    (Path.cwd() / "made").rename("again") if name == "simulate" else None
    assert door(*words, "-q") == (0, "", "")


def test_progress_goes_to_standard_error(door: Door) -> None:
    code, out, err = door("simulate", "made", "--preset", "tiny", "--json")
    assert code == 0
    assert json.loads(out)
    assert " of " in err


def test_what_is_wrong_is_printed_in_quiet_too(door: Door, log: Path) -> None:
    code, out, err = door("rank", "absent.json", "--store", "absent", "--quiet")
    assert (code, out) == (2, "")
    assert err.startswith("error: absent.json: no such file")
    assert err.splitlines()[-1].startswith("next: ")
    (Path("store") / "current").mkdir(parents=True)
    (Path("store") / "current" / "shopping.json").write_text("{")
    code, out, err = door("index", "list", "--quiet")
    assert (code, out) == (1, "")
    assert err.startswith("DAMAGED STORE: ")


@pytest.mark.parametrize(
    ("words", "code", "error", "step"),
    [
        (("rank", "absent.json", "--store", "s"), 2, "absent.json: no such file", "`adsieve rank --help`"),
        (("simulate", "x", "--sed", "7"), 2, "No such option: --sed", "`adsieve simulate --help`"),
        (
            ("index", "prune", "--keep", "0"),
            2,
            "'--keep': expected greater than or equal to 1, got '0'",
            "`adsieve index prune --help`",
        ),
        (("index", "build", "--out", "x"), 2, "Missing option '--ads'", "`adsieve index build --help`"),
        (("index", "purge"), 2, "No such command 'purge'", "`adsieve index --help`"),
        (("simulate", "x", "--preset", "huge"), 2, "preset: expected one of", "docs/reference/configuration.md"),
        (("rank", "request.json", "--store", "empty"), 2, "empty: holds no release", "`adsieve index publish --help`"),
        (("rank", "wrong.json", "--store", "empty"), 2, "survivors: ", "GET /openapi.json"),
        (("validate", "nolog", "--schema", "simulated_heavy"), 2, "nolog", "adsieve"),
        (("schema", "show", "unknown.yaml"), 2, "unknown.yaml: no such file", "docs/reference/configuration.md"),
        (("index", "list", "--store", "redis://127.0.0.1:1"), 1, "cannot be reached", "`adsieve doctor`"),
        (("index", "rollback", "--scenario", "shopping", "--store", "no"), 2, "no: no store here", "adsieve index"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_says_what_is_wrong_and_ends_with_what_to_do_next(
    words: tuple[str, ...], code: int, error: str, step: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd() / "cache"))
    Path("request.json").write_text('{"scenario": "shopping", "query": {}}')
    Path("wrong.json").write_text('{"scenario": "shopping", "query": {}, "survivors": 0}')
    found, out, err = door(*words)
    lines = err.splitlines()
    assert (found, out) == (code, "")
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert lines[-1].startswith("next: ")
    assert step in lines[-1]
    assert not any(sign in err for sign in ("Traceback", "╭", ESCAPE))


def test_an_unknown_key_of_a_configuration_is_named_with_where_keys_are_listed(door: Door, log: Path) -> None:
    Path("index.yaml").write_text("precison: fp16\n")
    Path("bundle").mkdir()
    words = ("--ads", log / "ads", "--two-tower", "bundle", "--config", "index.yaml", "--out", "index")
    code, _, err = door("index", "build", *words)
    first, second = err.splitlines()
    assert code == 2
    assert first.startswith("error: index.yaml: precison: unknown field")
    assert second.startswith("next: correct the file or option; docs/reference/configuration.md lists every key")


@pytest.mark.parametrize("kind", adsieve_terminal.NEXT_STEPS)
def test_every_kind_of_error_has_a_next_step(kind: type[AdsieveError]) -> None:
    error = kind("x", field="query") if kind.__name__ == "RequestError" else kind("x")  # type: ignore[call-arg]
    told = adsieve_terminal.explained(error, "adsieve rank")
    assert told is not None
    assert told[1] == adsieve_terminal.NEXT_STEPS[kind].format(command="adsieve rank")


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--port", "x", "expected a valid integer, got 'x'"),
        ("--port", "99999", "expected less than or equal to 65535, got '99999'"),
        ("--role", "foo", "'foo' is not one of 'rank', 'heavy'."),
    ],
)
def test_a_value_that_an_option_does_not_take_is_told(option: str, value: str, told: str, door: Door) -> None:
    code, _, err = door("serve", "--store", "store", option, value)
    assert (code, err.splitlines()[0]) == (2, f"error: Invalid value for '{option}': {told}")


def test_the_next_step_of_an_error_is_told_as_it_is() -> None:
    told = adsieve_terminal.explained(AdsieveError("x", next_step="say {name: label_click}"), "adsieve rank")
    assert told == ("x", "say {name: label_click}", 1)


def on_a_terminal(module: str, *words: str, **environment: str) -> str:
    """What a module prints where standard output and standard error are a terminal."""
    main, side = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=side,
        stdout=side,
        stderr=side,
        env=clean | {"TERM": "xterm-256color"} | environment,
    )
    os.close(side)
    parts = []
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # Linux: the other side is closed
            break
        if not part:
            break
        parts.append(part)
    process.wait(60)
    os.close(main)
    return b"".join(parts).decode()


@pytest.mark.parametrize(
    "words", [("index", "list", "--help"), ("schema", "show", "simulated_standard"), ("rank", "absent.json")]
)
def test_no_color_leaves_no_escape_code_on_a_terminal(words: tuple[str, ...]) -> None:
    assert ESCAPE not in on_a_terminal("adsieve", *words, NO_COLOR="1")


def test_progress_is_a_bar_on_a_terminal_and_under_no_color_plain_lines() -> None:
    words = (
        "timeit",
        "-n1",
        "-r1",
        "-s",
        "from contracts.progress import progress",
        "with progress('a', total=2): pass",
    )
    assert ESCAPE in on_a_terminal(*words)
    plain = on_a_terminal(*words, NO_COLOR="1")
    assert ESCAPE not in plain
    assert "a: 0 of 2 rows" in plain


def test_presets_that_a_shell_completes_are_those_there_are() -> None:
    assert set(WORLDS) == set(ALL_WORLDS)
    assert set(STUDENTS) == set(ALL_STUDENTS)
    assert set(TEACHERS) == set(ALL_TEACHERS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_this_program(shell: str, door: Door) -> None:
    code, out, _ = door("--show-completion", shell)
    assert code == 0
    assert "_ADSIEVE_COMPLETE" in out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("adsieve ind", ["index"]),
        ("adsieve index pr", ["prune"]),
        ("adsieve simulate x --preset t", ["tiny"]),
        ("adsieve heavy train --preset ", ["small", "medium", "iqiyi"]),
        ("adsieve schema show simulated_s", ["simulated_shopping", "simulated_standard"]),
        ("adsieve index rollback --scenario ", ["shopping", "standard", "video"]),
        ("adsieve distill train --store store --scenario v", ["video"]),
    ],
)
def test_a_shell_completes_commands_options_and_names(
    typed: str, completed: list[str], door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scenario in ("shopping", "standard", "video"):
        (Path("store") / "current").mkdir(parents=True, exist_ok=True)
        (Path("store") / "current" / f"{scenario}.json").touch()
    monkeypatch.setenv("_ADSIEVE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    code, out, _ = door()
    assert code == 0
    assert out.split() == completed
