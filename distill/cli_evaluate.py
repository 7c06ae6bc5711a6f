"""``adsieve distill evaluate``: a report on what students are worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import From, Json, Until, print_json
from distill.cli_options import Candidates, Logs, Threads

if TYPE_CHECKING:
    from distill.evaluate import Evaluation


def evaluate(
    logs: Logs,
    bundle: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Sealed two-tower bundle; its own graphs are judged.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for report.html, report.json and slices.parquet.")],
    candidates: Candidates = None,
    start: From = None,
    end: Until = None,
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="COLUMN", help="Also cut by this column of the log; repeat it for others."),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Heavy ads that should survive.")] = 10,
    pool_size: Annotated[
        int, typer.Option(min=1, help="Least number of scored eligible ads of a request whose recall is measured.")
    ] = 1_000,
    threads: Threads = 2,
    json: Json = False,
) -> None:
    """Report a student against the teacher: per slice, and what of the heavy ranker's best survives."""
    from contracts.bundle import open_bundle
    from contracts.records import LogPaths
    from distill.evaluate import evaluate_bundle
    from distill.report import HTML_FILE, write_report

    evaluation = evaluate_bundle(
        open_bundle(bundle, kind="two_tower"),
        LogPaths.under(logs, candidates),
        start=start,
        end=end,
        columns=slices or (),
        top_k=top_k,
        pool_size=pool_size,
        threads=threads,
    )
    write_report(evaluation, out)
    if json:
        print_json(evaluation)
        return
    _print_headline(evaluation)
    print(f"report: {out / HTML_FILE}")


def _print_headline(evaluation: "Evaluation") -> None:
    from rich.console import Console
    from rich.table import Table

    from distill.report import format_number, headline

    table = Table("figure", "value", title=f"{evaluation.scenario}: {evaluation.pairs:,} pairs")
    for name, value in headline(evaluation).items():
        table.add_row(name, format_number(value))
    Console().print(table)
