"""``adsieve distill evaluate``: a report on what students are worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import From, Json, Until, print_json, print_table, table
from distill.cli_options import Threads
from modeling.mlflow_run import Mlflow, Outcome, tracking

if TYPE_CHECKING:
    from distill.compare import Comparison, SliceDifference
    from distill.evaluate import Evaluation

SLICES = (
    "scenario, objective, day and hour, by surface (or tab), user activity, ad age with cold ads apart, advertiser "
    "size and price band where the log has columns for them, and by days that trained the teacher or the student"
)

_WORST_PRINTED = 10


def evaluate(
    logs: Annotated[
        list[Path], typer.Option("--logs", help="Log directory with requests/ and ads/; repeat it for other logs.")
    ],
    bundle: Annotated[
        list[Path],
        typer.Option(
            exists=True,
            file_okay=False,
            help="Sealed two-tower bundle; its own graphs are judged. Repeat it for others: the first one of a "
            "scenario is what the later ones are compared with.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory for report.html, report.json and slices.parquet.")],
    candidates: Annotated[
        list[Path] | None,
        typer.Option(
            help="Scored candidates, as `adsieve heavy score` writes them, once for each log in the same order; by "
            "default candidates/ of each log."
        ),
    ] = None,
    start: From = None,
    end: Until = None,
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="COLUMN",
            help=f"Also cut by this column of the log; repeat it for others. Every report cuts by {SLICES}.",
        ),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Heavy ads that should survive.")] = 10,
    pool_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Least number of scored eligible ads of a request whose recall is measured. By default 1,000 or, "
            "where no request has so many, what 50 requests have, as long as it is more than the 100 survivors.",
        ),
    ] = None,
    threads: Threads = 2,
    mlflow: Mlflow = None,
    json: Json = False,
) -> None:
    """Report students against the teacher: per slice, and what of the heavy ranker's best survives."""
    from contracts.bundle import open_bundle
    from contracts.errors import InputError
    from contracts.records import LogPaths
    from distill.evaluate import evaluate_bundles
    from distill.report import HTML_FILE, headline, write_report

    scored: list[Path | None] = [*candidates] if candidates else [None] * len(logs)
    if len(scored) != len(logs):
        raise InputError(f"--candidates: expected once for each of {len(logs)} logs, got {len(scored)}")
    with tracking(mlflow, "distill evaluate", place=out) as track:
        report = evaluate_bundles(
            [open_bundle(path, kind="two_tower") for path in bundle],
            [LogPaths.under(log, own) for log, own in zip(logs, scored, strict=True)],
            start=start,
            end=end,
            columns=slices or (),
            top_k=top_k,
            pool_size=pool_size,
            threads=threads,
        )
        write_report(report, out)
        track(Outcome(metrics={one.bundle: headline(one) for one in report.evaluations}, logs=logs))
    if json:
        print_json(report)
        return
    for evaluation in report.evaluations:
        _print_headline(evaluation, pool_size)
    for comparison in report.comparisons:
        _print_comparison(comparison)
    print(f"report: {out / HTML_FILE}")


def _print_headline(evaluation: "Evaluation", pool_size: int | None) -> None:
    """The figures that a launch is decided by; where recall says nothing, or little, why."""
    from distill.recall import HEADLINE_SURVIVORS, POOL_SIZE
    from distill.report import headline
    from distill.report_metrics import format_number

    title = f"{evaluation.bundle} on {evaluation.log}: {evaluation.pairs:,} pairs"
    figures, recall = table("figure", "value", title=title), evaluation.recall
    uncut = recall is not None and recall.pool_size[1] <= HEADLINE_SURVIVORS
    for name, value in headline(evaluation).items():
        figures.add_row(name, "nothing is cut" if uncut and name.startswith("heavy top") else format_number(value))
    print_table(figures)
    if recall is None:
        print(_no_recall(evaluation.largest_pool, pool_size))
    elif uncut:
        print(f"no recall at {HEADLINE_SURVIVORS} survivors: pools of at most {recall.pool_size[1]:,} ads")
    elif pool_size is None and recall.pool_size[1] < POOL_SIZE:
        fewest, most = recall.pool_size
        print(
            f"recall on pools of {fewest:,} to {most:,} scored eligible ads, since no request has {POOL_SIZE:,}: in "
            "larger ones it is lower"
        )


def _no_recall(largest: int, pool_size: int | None) -> str:
    """Why recall is not measured, and what gives it."""
    from distill.recall import HEADLINE_SURVIVORS

    if pool_size is not None:
        return f"no recall: no request has {pool_size:,} scored eligible ads (largest: {largest:,}); lower --pool-size"
    return (
        f"no recall: the largest request has {largest:,} scored eligible ads, so that nothing is cut at "
        f"{HEADLINE_SURVIVORS} survivors; log some requests with all that was eligible (of CSV files: whole_pools in "
        "the mapping), or name a smaller --pool-size"
    )


def _print_comparison(comparison: "Comparison") -> None:
    """What the report's page says of it, and the figures that got worse, the worst first."""
    from distill.report_verdict import judge_comparison

    verdict = judge_comparison(comparison, comparison.bundle, comparison.against)
    print(f"{verdict.title} on {comparison.log}:\n  {verdict.summary}")
    for row in [row for row in comparison.rows if row.verdict == "worse"][:_WORST_PRINTED]:
        print(f"  {_worse_line(row)}")


def _worse_line(row: "SliceDifference") -> str:
    """``winners, day 2026-03-01: auc of click against teacher 0.822 -> 0.778, worse by 0.044 [0.020, 0.081]``."""
    from distill.report_metrics import format_number, format_with_interval

    low, high = sorted((abs(row.low), abs(row.high)))  # the interval leaves out 0
    by, ends = format_with_interval(abs(row.difference), (low, high))
    ends = ends.replace(" to ", ", ")
    unit = " in its log" if row.metric == "calibration" else ""
    where = row.stage if row.slice == row.value else f"{row.stage}, {row.slice} {row.value}"
    figures = f"{format_number(row.before, 3)} -> {format_number(row.after, 3)}, worse by {by}{unit} [{ends}]"
    return f"{where}: {row.metric} of {row.head} against {row.against} {figures}"
