"""``adsieve init``: a project to begin with."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from contracts.console import Json, print_json


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to create; it may be there, empty.")],
    logs: Annotated[
        Path | None, typer.Option(help="Log to make the schemas from, and to divide for training. Without it, fill in.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a project: schemas, training, service settings, and nightly.sh, which does all that a night needs.

    With --logs the schemas are inferred, each guess with its reason, and nightly.sh runs as it is.
    """
    from adlogs.init import init_project

    written = init_project(directory, logs)
    if as_json:
        print_json({"directory": str(directory), "files": written})
        return
    for name in written:
        print(directory / name)
    if logs is None:
        print(f"next: read {directory / 'README.md'}, which says what to fill in")
    else:
        schemas = shlex.join([str(directory / "schemas" / f"{name}.yaml") for name in ("heavy", "towers")])
        print(f"next: read {schemas}, then run {shlex.join([str(directory / 'nightly.sh')])}")
