"""Writes an evaluation as one self-contained HTML page, as JSON and as Parquet."""

import math
from pathlib import Path

from contracts.artifact import write_bytes, write_json
from distill import plots
from distill.evaluate import Evaluation, Report
from distill.page import inline, page_template
from distill.recall import EQUAL_BIDS, HEADLINE_SURVIVORS, STUDENT, TOP_K, UTILITY
from distill.report_explorer import slice_data
from distill.report_metrics import METRICS, format_number, format_percent
from distill.report_sections import build_section, explored_sets, report_groups
from distill.report_verdict import CALIBRATION_AIM, LOST_AIM, RECALL_AIM
from distill.slice_table import write_slices
from distill.slices import STAGE_SLICES

HTML_FILE, JSON_FILE, SLICES_FILE = "report.html", "report.json", "slices.parquet"


def write_report(report: Report, directory: Path) -> None:
    """Write ``report.html``, ``report.json`` and ``slices.parquet`` into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / JSON_FILE, report)
    write_slices(report.evaluations, directory / SLICES_FILE)
    write_bytes(directory / HTML_FILE, render_html(report).encode())


def render_html(report: Report) -> str:
    """The page: styles, plots, data and script inside it, nothing fetched, every text escaped."""
    groups = report_groups(report)
    scenarios = ", ".join(dict.fromkeys(one.scenario for one in report.evaluations))
    return page_template("report.html.j2").render(
        title=f"Student against teacher: {scenarios}",
        sections=[build_section(group, number) for number, group in enumerate(groups, 1)],
        slice_data=slice_data(list(explored_sets(groups))),
        styles=inline("report.css"),
        script=inline("report.js"),
        plots=plots,
        metrics=METRICS,
        headline_survivors=HEADLINE_SURVIVORS,
        top_k=next((one.recall.top_k for one in report.evaluations if one.recall), TOP_K),
        aims={
            "recall": format_number(RECALL_AIM),
            "lost": format_percent(LOST_AIM),
            "calibration": format_percent(CALIBRATION_AIM),
        },
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
