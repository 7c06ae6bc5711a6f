"""Writes a skew sweep as JSON and as one self-contained HTML page."""

import math
from pathlib import Path

from contracts.artifact import write_bytes, write_json
from distill import plots
from distill.gate_record import POOLS
from distill.page import inline, page_template
from distill.plots import Plot, Scale, Series, line_plot, log_ticks
from distill.report_metrics import BY_KEY, format_number
from distill.report_tables import Cell, Column, Table, number_cell, text_cell
from distill.skew import METRICS, SkewReport, SkewVersion
from distill.slices import STAGE_SLICES

HTML_FILE, JSON_FILE = "skew.html", "skew.json"

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def write_skew(report: SkewReport, directory: Path) -> None:
    """Write ``skew.html`` and ``skew.json`` into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / JSON_FILE, report)
    write_bytes(directory / HTML_FILE, render_skew(report).encode())


def render_skew(report: SkewReport) -> str:
    """The page: styles and plots inside it, nothing fetched, every text escaped."""
    return page_template("skew.html.j2").render(
        report=report,
        styles=inline("report.css"),
        plots=plots,
        drawings=skew_plots(report),
        tables=[figures_table(report, stage) for stage in STAGE_SLICES] + [recall_table(report)],
    )


def figures_table(report: SkewReport, stage: str) -> Table:
    """Every metric of a stage, with what the query's own pins give and the interval of the difference."""
    columns = [Column("pins", True), Column("hours"), Column("head", True)]
    columns += [Column(BY_KEY[metric].label, help=BY_KEY[metric].help) for metric in METRICS]
    rows = []
    for number, version in enumerate(report.versions):
        rows += [
            [*_named(number, version), text_cell(task), *(_cell(version, stage, task, metric) for metric in METRICS)]
            for task in report.tasks
            if any(version.figure(stage, task, metric) for metric in METRICS)
        ]
    return Table(f"Against the teacher on {stage}", columns, rows)


def recall_table(report: SkewReport) -> Table:
    """Recall where the log has whole pools; no rows elsewhere."""
    orders = [figure.head for figure in report.versions[0].figures if figure.stage == POOLS]
    columns = [Column("pins", True), Column("hours"), *(Column(order) for order in orders)]
    rows = [
        [*_named(number, version), *(_cell(version, POOLS, order, "recall") for order in orders)]
        for number, version in enumerate(report.versions)
        if orders and version.figures
    ]
    return Table(f"Heavy top 10 among 100 survivors of {report.pools:,} whole pools", columns, rows)


def skew_plots(report: SkewReport) -> list[Plot]:
    """KL and AUC of all pairs over the versions, which are numbered as in the tables."""
    found = [
        (metric, [_series(report, task, metric, color) for color, task in enumerate(report.tasks)])
        for metric in ("kl", "auc")
    ]
    number = Scale(list(range(max(len(report.versions), 2))), text="{:.0f}".format)
    drawn = []
    for metric, series in found:
        values = [max(value, 1e-9) for one in series for value in one.y if math.isfinite(value)]
        if values:
            y = Scale(log_ticks(min(values), max(values)), log=True) if metric == "kl" else Scale(_SHARES)
            label = BY_KEY[metric].label
            drawn.append(
                line_plot(
                    f"{label} against the teacher, all pairs",
                    series,
                    x=number,
                    y=y,
                    x_label="version of the pins",
                    y_label=label,
                )
            )
    return drawn


def _series(report: SkewReport, task: str, metric: str, color: int) -> Series:
    figures = [version.figure("eligible", task, metric) for version in report.versions]
    values = [math.nan if figure is None else figure.value for figure in figures]
    return Series(task, list(range(len(values))), values, color=color)


def _named(number: int, version: SkewVersion) -> list[Cell]:
    return [Cell(f"{number}: {version.version}", "the query's own" if number == 0 else ""), _hours(version)]


def _hours(version: SkewVersion) -> Cell:
    return number_cell(version.hours, digits=4)


def _cell(version: SkewVersion, stage: str, head: str, metric: str) -> Cell:
    figure = version.figure(stage, head, metric)
    if figure is None:
        return number_cell(math.nan)
    note = ""
    if figure.difference and math.isfinite(figure.low):
        note = f"{figure.verdict}: {format_number(figure.low, 3)} to {format_number(figure.high, 3)}"
    return Cell(format_number(figure.value), note, "", f"{figure.value:.9g}" if math.isfinite(figure.value) else "")
