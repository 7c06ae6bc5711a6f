"""`adsieve init`: writes a project, which is schemas, training, service settings and what to run every night."""

import os
import shlex
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.compute as pc

from adlogs.infer import infer_schema
from adlogs.log_span import split_moments
from contracts.artifact import write_bytes
from contracts.errors import InputError
from contracts.records import LogPaths, open_dataset, plain_text

_TRAINING = {"training/heavy.yaml": "heavy-training.yaml", "training/towers.yaml": "towers-training.yaml"}
_PLACEHOLDER = "PATH_OF_YOUR_LOG"


def init_project(directory: Path, logs: Path | None) -> list[str]:
    """Write a project, which appears whole or not at all.

    Args:
        directory: To create; it may be there if it is empty.
        logs: A log, out of which schemas and moments are made; placeholders without one.

    Returns:
        The files that were written, relative to ``directory``.

    Raises:
        InputError: ``directory`` holds something, or lies in the log.
        LogError: The log cannot be read, or has no outcome.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(
            f"{directory}: is not empty, expected a new or empty directory for the project",
            next_step="choose another DIR; what is there stays as it is",
        )
    if logs is not None and logs.resolve() in (directory.resolve(), *directory.resolve().parents):
        raise InputError(
            f"{directory}: lies inside --logs {logs}, which is read", next_step=f"choose a DIR apart from {logs}"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as made:
        aside = Path(made) / "project"
        _write(aside, logs)
        written = sorted(path.relative_to(aside).as_posix() for path in aside.rglob("*") if path.is_file())
        os.replace(aside, directory)
    return written


def _write(aside: Path, logs: Path | None) -> None:
    values = _values(logs)
    for place in ("schemas", "training"):
        (aside / place).mkdir(parents=True)
    for name in ("heavy", "towers"):
        path = aside / "schemas" / f"{name}.yaml"
        if logs is None:
            towers = " --towers" if name == "towers" else ""
            _put(path, "schema.yaml", {"NAME": name, "TOWERS": towers})
        else:
            infer_schema(logs, path, towers=name == "towers", shown_as=f"schemas/{name}.yaml")
    for target, source in {**_TRAINING, "limits.yaml": "limits.yaml"}.items():
        _put(aside / target, source, {})
    _put(aside / ".env", "env", values)
    _put(aside / "README.md", "readme.md", values)
    _put(aside / ".gitignore", "gitignore", {})
    _put(aside / "nightly.sh", "nightly.sh", {})
    (aside / "nightly.sh").chmod(0o755)


def _values(logs: Path | None) -> dict[str, str]:
    """What the templates leave open."""
    if logs is None:
        before = (
            "1. Set `LOGS` in `.env` to your log. From CSV files: `adsieve convert csv DIR --propose mapping.yaml`.\n"
            "2. Replace both files of `schemas/`: each says by which command.\n"
            "3. Set `SCENARIOS` in `.env` to those of your requests."
        )
        open_moments = {"TEACHER_UNTIL": "", "STUDENT_UNTIL": ""}
        return {"LOGS": _PLACEHOLDER, "SCENARIOS": "standard", "SCENARIO": "standard", "BEFORE": before, **open_moments}
    log = LogPaths.under(logs)
    found: set[str] = set()
    for batch in open_dataset(log.requests).to_batches(["scenario"]):
        found.update(pc.unique(plain_text(batch["scenario"]).drop_null()).to_pylist())
    names = sorted(found)
    moments = split_moments(log)
    before = "Read both files of `schemas/`: where a comment says `check`, figures alone could not decide."
    return {
        "LOGS": shlex.quote(str(logs.resolve())),
        "SCENARIOS": " ".join(names),
        "SCENARIO": names[0],
        "BEFORE": before,
        "TEACHER_UNTIL": moments["teacher_until"],
        "STUDENT_UNTIL": moments["student_until"],
    }


def _put(path: Path, template: str, values: dict[str, str]) -> None:
    """Write a template with its marks, ``@NAME@``, replaced."""
    text = (files("adlogs") / "project" / template).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    write_bytes(path, text.encode())
