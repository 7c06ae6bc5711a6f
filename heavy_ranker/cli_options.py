"""Options that several commands of ``adsieve heavy`` share."""

import sys
from pathlib import Path
from typing import Annotated

import typer

Log = Annotated[
    Path,
    typer.Option("--logs", help="Log directory with requests/, candidates/ and ads/ (truth/ where simulated)."),
]
RunOption = Annotated[
    Path,
    typer.Option("--run", help="Finished run directory; of a daily teacher series, its newest model is taken."),
]


def chosen_run(path: Path) -> Path:
    """The run at a path, or the newest of the daily series there, which is said on standard error.

    Raises:
        InputError: The path holds a series of folds.
    """
    from heavy_ranker.series import newest_run

    run = newest_run(path)
    if run != path:
        print(f"{path} is a teacher series: taking its newest model, {run}", file=sys.stderr)
    return run
