"""``adsieve doctor``: what this machine can do, and what to do about what it cannot."""

from pathlib import Path
from typing import Annotated

import typer

from contracts.console import Json, console, print_json
from indexing.cli_options import Local


def doctor(
    bundle: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Sealed bundle whose models the engines are tried on, not a drawn tower."
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Redis server to look at: redis://, rediss:// or unix://."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY|URL", envvar="ADSIEVE_STORE", help="Store whose releases are looked at."),
    ] = None,
    local: Local = None,
    json: Json = False,
) -> None:
    """Tell what this machine can do: libraries, CPU, memory, limits, engines as measured, GPU, Redis, a store.

    Each line is ok, a note on what only some need, a warning, or a failure, with what to do next. The exit code is 1
    where adsieve needs something that fails, else 0. Engines run a small query tower with drawn weights, or the model
    of --bundle: `error` is the largest difference from what it should compute, `ms` the median of one call.
    """
    from service.doctor.report import examine, report

    found = examine(bundle=bundle, redis=redis, store=store, local=local)
    if json:
        print_json(found)
    else:
        shown = console()
        for part in report(found):
            shown.print(part)
    if not found.works:
        raise typer.Exit(1)
