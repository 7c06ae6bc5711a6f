"""Options that several commands of ``adsieve distill`` share."""

from pathlib import Path
from typing import Annotated

import typer

Logs = Annotated[Path, typer.Option("--logs", help="Log directory with requests/ and ads/.")]
Candidates = Annotated[
    Path | None,
    typer.Option(help="Scored candidates, as `adsieve heavy score` writes them; by default candidates/ of the log."),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the exported graphs.")]


def scenario_names(context: typer.Context, incomplete: str) -> list[str]:
    """For a shell, the scenarios of the store that a command names; the front door knows how to ask it."""
    known = getattr(context.obj, "scenarios", None)
    names = [] if known is None else known(context.params.get("store"))
    return [name for name in names if name.startswith(incomplete)]
