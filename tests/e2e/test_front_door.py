"""What goes wrong outside of adsieve, such as a path that cannot be used, is one line and an exit code too."""

import errno
import hashlib
import sys
from pathlib import Path

import pytest

import adsieve


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["adsieve", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        adsieve.main()
    return stopped.value.code or 0  # type: ignore[return-value]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.txt"
    path.write_text("kept")
    return path


def test_a_path_below_a_file_is_wrong_usage(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "simulate", file / "log", "--preset", "tiny") == 2
    assert capsys.readouterr().err == (
        f"error: {file}: file exists\nnext: choose another path; `adsieve simulate --help` tells what it takes\n"
    )
    assert file.read_text() == "kept"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/etc/out"), 2, "/etc/out: permission denied"),
        (OSError(errno.ENOSPC, "No space left on device", "out.npy"), 1, "out.npy: no space left on device"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", ".o.tmp", None, "o"), 2, "o: is a directory"),
        (
            OSError(errno.EROFS, "Read-only file system", "ro/.logs.483d02ec.partial"),
            2,
            "ro/logs: read-only file system",
        ),
        (OSError(errno.EROFS, "Read only", ".m.yaml.5b8fd78c.tmp"), 2, "m.yaml: read only"),
        (OSError(errno.EROFS, "Read only", "ro/.i.work"), 2, "ro/i: read only"),
        (OSError(errno.EROFS, "Read only", "ro/.p.sddaghxz"), 2, "ro/p: read only"),
        (OSError(errno.EROFS, "Read only", "ro/.lock"), 2, "ro/.lock: read only"),
        (OSError("short write"), 1, "short write"),
    ],
)
def test_the_system_is_quoted_with_the_path(
    error: OSError,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("adlogs.simulate.simulate", fail)
    assert run(monkeypatch, "simulate", tmp_path / "log") == code
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: {message}"
    assert second.startswith("next: choose another path" if code == 2 else "next: make room or mend")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("index", "build", "--ads", "ads", "--two-tower", "absent", "--out", "out"), "--two-tower"),
        (("index", "publish", "--two-tower", ".", "--index", "absent"), "--index"),
        (("heavy", "score", "--logs", "log", "--bundle", "absent", "--out", "out"), "--bundle"),
        (("distill", "evaluate", "--logs", "log", "--bundle", "absent", "--out", "out"), "--bundle"),
    ],
)
def test_a_directory_that_is_not_there_is_wrong_usage(
    command: tuple[str, ...],
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *command) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("index", "list"), ("serve",), ("index", "rollback", "--scenario", "shopping")])
def test_a_store_that_is_a_file_is_wrong_usage(
    command: tuple[str, ...], file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *command, "--store", file) == 2
    assert "Invalid value for '--store'" in capsys.readouterr().err


def test_a_rollback_makes_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "index", "rollback", "--scenario", "shopping", "--store", tmp_path / "absent") == 2
    assert "absent: no store here" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_a_machine_that_only_serves_says_how_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # what Python does where a module is not there
    for name in [name for name in sys.modules if name.startswith(("heavy_ranker.train", "modeling."))]:
        monkeypatch.delitem(sys.modules, name)
    options = ("--logs", tmp_path / "log", "--schema", tmp_path / "s.yaml", "--out", tmp_path / "run")
    assert run(monkeypatch, "heavy", "train", *options) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: this command needs torch")
    assert "pip install -r requirements/train.txt" in message


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 8.00 PiB for an array"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    ],
)
def test_memory_that_runs_out_is_one_line(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("adlogs.simulate.simulate", fail)
    assert run(monkeypatch, "simulate", tmp_path / "log") == 1
    assert capsys.readouterr().err.startswith("error: out of memory\nnext: choose smaller batches")


def test_another_runtime_error_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr("adlogs.simulate.simulate", fail)
    monkeypatch.setattr("sys.argv", ["adsieve", "simulate", str(tmp_path / "log")])
    with pytest.raises(RuntimeError, match="shapes differ"):
        adsieve.main()


@pytest.mark.parametrize(
    "command",
    [
        ("heavy", "train", "--logs", "log", "--schema", "s.yaml", "--out", "out", "--warm-start", "other"),
        ("heavy", "evaluate", "--logs", "log", "--run", "other"),
        ("heavy", "export", "--logs", "log", "--run", "other", "--out", "out"),
        ("heavy", "score", "--logs", "log", "--bundle", "other", "--out", "out"),
        ("heavy", "score", "--logs", "log", "--series", "other", "--out", "out"),
        ("distill", "publish", "--logs", "log", "--run", "other", "--out", "out"),
        ("distill", "evaluate", "--logs", "log", "--bundle", "other", "--out", "out"),
        ("index", "build", "--ads", "log/ads", "--two-tower", "other", "--out", "out"),
        ("index", "publish", "--two-tower", "other", "--index", "other", "--store", "store"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.parametrize("holds", ["a log", "an index", "nothing"])
def test_a_directory_of_something_else_is_wrong_usage_and_named(
    command: tuple[str, ...],
    holds: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    if holds == "a log":
        (other / "candidates").mkdir()
    if holds == "an index":
        (other / "manifest.json").write_text('{"two_tower": "t"}')
        (other / "READY").write_text(hashlib.sha256((other / "manifest.json").read_bytes()).hexdigest())
    assert run(monkeypatch, *command) == 2
    message = capsys.readouterr().err
    assert message.startswith(("error: other", "error: no run or bundle at other"))
    assert holds == "nothing" or f", it holds {holds}" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]
