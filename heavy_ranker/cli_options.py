"""Options that several commands of ``adsieve heavy`` share."""

from pathlib import Path
from typing import Annotated

import typer

Log = Annotated[
    Path,
    typer.Option("--logs", help="Log directory with requests/, candidates/ and ads/ (truth/ where simulated)."),
]
