"""Options that commands of ``adsieve index`` share."""

from pathlib import Path
from typing import Annotated

import typer

TwoTower = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="Two-tower bundle, as `adsieve distill publish` seals it.")
]
Heavy = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Heavy bundle, as `adsieve heavy export` seals it. Without it the release ends with the towers.",
    ),
]
Store = Annotated[
    Path, typer.Option(file_okay=False, help="Directory that holds the releases; `adsieve serve` reads the same.")
]
