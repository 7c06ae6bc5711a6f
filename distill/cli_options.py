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
