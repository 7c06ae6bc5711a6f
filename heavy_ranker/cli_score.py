"""``adsieve heavy score``: teacher columns for a log."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import From, Json, Until, print_json, warn
from heavy_ranker.cli_options import Log

if TYPE_CHECKING:
    from heavy_ranker.score import ScoreReport
    from heavy_ranker.series import Teacher


def score(
    log: Log,
    out: Annotated[
        Path, typer.Option(help="Directory for the scored candidates. Called again, it adds missing parts.")
    ],
    bundle: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Sealed heavy bundle that scores all rows.")
    ] = None,
    series: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Series of `adsieve heavy train --series`: each row is scored by a model that has not seen it.",
        ),
    ] = None,
    start: From = None,
    end: Until = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; each takes part files of the log in turn.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the graphs in each process; 2, or 1 with several processes.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a copy of the log's candidates with the teacher's logits, for distillation."""
    from dataclasses import asdict

    from contracts.records import LogPaths
    from heavy_ranker.score import score_log

    teacher = _teacher(bundle, series)
    threads = threads or (2 if workers == 1 else 1)
    report = score_log(teacher, LogPaths.under(log), out, start=start, end=end, threads=threads, workers=workers)
    _warn(report)
    if json:
        print_json(asdict(report))
        return
    if report.parts_written:
        print(f"{report.teacher_version}: {report.rows_scored:,} of {report.rows:,} rows have scores in", end=" ")
        print(f"{out / 'candidates'}; {report.parts_written} parts written, {report.parts_kept} kept")
    else:
        print(f"{report.teacher_version}: nothing to score, all {report.parts_kept} parts are in {out / 'candidates'}")


def _teacher(bundle: Path | None, series: Path | None) -> "Teacher":
    from contracts.bundle import open_bundle
    from heavy_ranker.series import bundle_teacher, series_teacher

    if bundle is not None and series is None:
        return bundle_teacher(open_bundle(bundle, kind="heavy"))
    if series is not None and bundle is None:
        return series_teacher(series)
    raise typer.BadParameter(
        "expected exactly one of --bundle and --series, got " + ("none" if bundle is None else "both"),
        param_hint="--bundle or --series",
    )


def _warn(report: "ScoreReport") -> None:
    """Say on standard error what a student should not learn from, and what it will not find."""
    if report.rows_seen:
        warn(
            f"{report.rows_seen:,} of the {report.rows_scored:,} rows with scores are not later than the data "
            f"that {report.teacher_version} was trained on; a student that learns from them learns what the teacher "
            "remembers. Score later rows (--from), or train a series: `adsieve heavy train --series daily`"
        )
    if report.rows_no_member:
        print(
            f"{report.rows_no_member:,} rows have no scores: they are older than the first day that a model of "
            f"{report.teacher_version} scores",
            file=sys.stderr,
        )
