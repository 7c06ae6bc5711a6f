"""``adsieve distill skew``: what it costs when queries of one version meet pins of another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import From, Json, Until, print_json, print_table, table
from distill.cli_options import Candidates, Logs, Threads

if TYPE_CHECKING:
    from distill.skew import SkewReport


def skew(
    logs: Logs,
    query: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Sealed two-tower bundle whose query tower scores.")
    ],
    pins: Annotated[
        list[Path],
        typer.Option(
            exists=True,
            file_okay=False,
            help="Bundle whose pin embeddings are scored with it; repeat it for others. Choose those of the days "
            "before, which tell how long an index may lag, and one of another seed, the worst case. The query's own "
            "pins are the baseline in any case.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory for skew.html and skew.json.")],
    candidates: Candidates = None,
    start: From = None,
    end: Until = None,
    pool_size: Annotated[
        int, typer.Option(min=1, help="Least number of scored eligible ads of a request whose recall is measured.")
    ] = 1_000,
    threads: Threads = 2,
    json: Json = False,
) -> None:
    """Sweep versions of the pins under one query tower: how fast quality falls, and why versions are paired."""
    from contracts.bundle import open_bundle
    from contracts.records import LogPaths
    from distill.skew import measure_skew
    from distill.skew_report import HTML_FILE, write_skew

    report = measure_skew(
        open_bundle(query, kind="two_tower"),
        [open_bundle(path, kind="two_tower") for path in pins],
        LogPaths.under(logs, candidates),
        start=start,
        end=end,
        pool_size=pool_size,
        threads=threads,
    )
    write_skew(report, out)
    if json:
        print_json(report)
        return
    _print(report)
    print(f"report: {out / HTML_FILE}")


def _print(report: "SkewReport") -> None:
    """Every figure of every version; one that is surely worse than with the query's own pins is marked."""
    from distill.gate_record import POOLS
    from distill.report_metrics import format_number
    from distill.skew import METRICS
    from distill.slices import STAGE_SLICES

    title = f"Query tower of {report.query} on {report.log}: {report.pairs:,} pairs"
    rows = table("pins", "hours", "stage", "head", "KL", "LogMAE", "AUC", "calibration", title=title)
    for version in report.versions:
        name = f"{version.version[-12:]}" + (" (own)" if version.version == report.query else "")
        for stage in STAGE_SLICES:
            for task in report.tasks:
                found = [version.figure(stage, task, metric) for metric in METRICS]
                if any(found):
                    values = (_mark(one.value, one.verdict) if one else format_number(float("nan")) for one in found)
                    rows.add_row(name, f"{version.hours:+.1f}", stage, task, *values)
        for figure in (one for one in version.figures if one.stage == POOLS):
            recall = f"recall {_mark(figure.value, figure.verdict)}"
            rows.add_row(name, f"{version.hours:+.1f}", POOLS, figure.head, "", "", recall, "")
        rows.add_section()
    print_table(rows)
    for version in report.versions:
        if version.unscorable:
            print(f"{version.version} {version.unscorable}")
    print("* surely worse than with the query's own pins")


def _mark(value: float, verdict: str) -> str:
    from distill.report_metrics import format_number

    return format_number(value) + ("*" if verdict == "worse" else "")
