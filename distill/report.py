"""Writes an evaluation as one self-contained HTML page, as JSON and as Parquet."""

import math
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from contracts.artifact import write_bytes, write_json
from distill import plots
from distill.evaluate import Evaluation, Report
from distill.measures import Reliability, SliceMetrics
from distill.recall import EQUAL_BIDS, STUDENT, UTILITY, RecallReport
from distill.slice_table import write_slices
from distill.slices import ALL, STAGE_SLICES

HTML_FILE, JSON_FILE, SLICES_FILE = "report.html", "report.json", "slices.parquet"
HEADLINE_SURVIVORS = 100

_TEMPLATES = Path(__file__).parent / "templates"
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def write_report(report: Report, directory: Path) -> None:
    """Write ``report.html``, ``report.json`` and ``slices.parquet`` into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / JSON_FILE, report)
    write_slices(report.evaluations, directory / SLICES_FILE)
    write_bytes(directory / HTML_FILE, render_html(report.evaluations[0]).encode())


def render_html(evaluation: Evaluation) -> str:
    """The page: styles, plots and script inside it, nothing fetched, every text escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_number
    template = environment.get_template("report.html.j2")
    return template.render(
        evaluation=evaluation,
        tiles=headline(evaluation),
        recall_plots=_recall_plots(evaluation.recall) if evaluation.recall else [],
        reliability_plots=_reliability_plots([curve for curve in evaluation.reliability if curve.slice == ALL]),
        stages=[row for row in evaluation.slices if row.slice == ALL],
        slice_tables=_slice_tables(evaluation.slices),
        plots=plots,
    )


def headline(evaluation: Evaluation) -> dict[str, float]:
    """The figures that a launch is decided by, by what they are called; NaN where the log could not give one."""
    figures = {}
    recall = evaluation.recall
    if recall is not None:
        suffix = f"heavy top {recall.top_k} within {HEADLINE_SURVIVORS}"
        for task in evaluation.tasks:
            order = f"{EQUAL_BIDS}, {task}"
            figures[f"{suffix}, {order}"] = recall.at(order, STUDENT, HEADLINE_SURVIVORS)
        figures[f"{suffix}, {UTILITY}"] = recall.at(UTILITY, STUDENT, HEADLINE_SURVIVORS)
    for task in evaluation.tasks:
        for stage in STAGE_SLICES:
            found = evaluation.metrics(stage, task)
            figures[f"KL on {stage}, {task}"] = found.kl if found else math.nan
    return figures


def format_number(value: float, digits: int = 4) -> str:
    """A number for people; a dash where it is undefined.

    Example:
        >>> format_number(0.00012345), format_number(float("nan"))
        ('0.0001234', '-')
    """
    return f"{value:.{digits}g}" if math.isfinite(value) else "-"


def _recall_plots(recall: RecallReport) -> list[plots.Plot]:
    """One plot for each order, a line for each ranking."""
    orders = dict.fromkeys(curve.order for curve in recall.curves)
    ticks = plots.log_ticks(recall.survivors[0], recall.survivors[-1])
    return [
        plots.line_plot(
            f"Heavy top {recall.top_k} that survives: {order}",
            [plots.Series(c.ranking, recall.survivors, c.recall) for c in recall.curves if c.order == order],
            x_label="survivors",
            y_label="recall",
            x_ticks=ticks,
            y_ticks=_SHARES,
            log=True,
        )
        for order in orders
    ]


def _reliability_plots(curves: Sequence[Reliability]) -> list[plots.Plot]:
    """One plot for each head and stage, against whatever there is."""
    found = []
    for stage, head in dict.fromkeys((curve.stage, curve.head) for curve in curves):
        own = [curve for curve in curves if (curve.stage, curve.head) == (stage, head)]
        rates = [rate for curve in own for rate in (*curve.predicted, *curve.observed) if rate > 0]
        if not rates:
            continue
        ticks = plots.log_ticks(min(rates), max(rates))
        series = [_positive_series(curve) for curve in own]
        found.append(
            plots.line_plot(
                f"{head}, {stage}",
                series,
                x_label="predicted by the student",
                y_label="observed",
                x_ticks=ticks,
                y_ticks=ticks,
                log=True,
                diagonal=True,
            )
        )
    return found


def _positive_series(curve: Reliability) -> plots.Series:
    """A bin without any observed event has no place on a logarithmic axis."""
    points = [(p, o) for p, o in zip(curve.predicted, curve.observed, strict=True) if p > 0 and o > 0]
    name = "teacher" if curve.against == "teacher" else "labels"
    return plots.Series(name, [p for p, _ in points], [o for _, o in points])


def _slice_tables(slices: Sequence[SliceMetrics]) -> dict[str, dict[str, list[SliceMetrics]]]:
    """Rows by stage and by column."""
    tables: dict[str, dict[str, list[SliceMetrics]]] = {}
    for row in slices:
        if row.slice != ALL:
            tables.setdefault(row.stage, {}).setdefault(row.slice, []).append(row)
    return tables
