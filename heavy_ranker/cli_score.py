"""``adsieve heavy score``: teacher columns for a log."""

from pathlib import Path
from typing import Annotated

import typer

from contracts.console import From, Json, Until, print_json
from heavy_ranker.cli_options import Log


def score(
    log: Log,
    bundle: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Sealed heavy bundle.")],
    out: Annotated[
        Path, typer.Option(help="Directory for the scored candidates. Called again, it adds missing parts.")
    ],
    start: From = None,
    end: Until = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the graphs.")] = 2,
    json: Json = False,
) -> None:
    """Write a copy of the log's candidates with the teacher's logits, for distillation."""
    from dataclasses import asdict

    from contracts.bundle import open_bundle
    from contracts.records import LogPaths
    from heavy_ranker.score import score_log

    sealed = open_bundle(bundle, kind="heavy")
    report = score_log(sealed, LogPaths.under(log), out, start=start, end=end, threads=threads)
    if json:
        print_json(asdict(report))
        return
    if not report.parts_written:
        print(f"{report.teacher_version}: nothing to score, all {report.parts_kept} parts are in {out / 'candidates'}")
        return
    print(
        f"{report.teacher_version}: scored {report.rows_scored:,} of {report.rows:,} rows into {out / 'candidates'}; "
        f"{report.parts_written} parts written, {report.parts_kept} kept"
    )
