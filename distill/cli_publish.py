"""``adsieve distill publish``: a sealed bundle out of a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from contracts.console import From, Json, Until, print_json
from distill.cli_options import Candidates, Logs, Threads


def publish(
    logs: Logs,
    run: Annotated[Path, typer.Option(help="Finished run directory.")],
    out: Annotated[Path, typer.Option(help="Bundle to create; it appears whole or not at all.")],
    candidates: Candidates = None,
    start: From = None,
    end: Until = None,
    threads: Threads = 2,
    json: Json = False,
) -> None:
    """Seal a bundle: graphs checked against the model, weights, saved requests, feature profile and slices."""
    from contracts.records import LogPaths
    from distill.publish import publish_student
    from distill.run import load_run

    log = LogPaths.under(logs, candidates)
    bundle = publish_student(load_run(run), log, out, start=start, end=end, threads=threads)
    if json:
        print_json({"bundle": str(out), "version": bundle.manifest.version})
    else:
        print(f"sealed {bundle.manifest.version} at {out}")
