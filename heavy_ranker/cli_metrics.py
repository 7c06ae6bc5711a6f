"""Metrics of a heavy ranker as its commands print them, with a remark where one is undefined or the model worthless."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.console import print_table, table
from modeling.mlflow_run import Outcome

if TYPE_CHECKING:
    from heavy_ranker.run import RunSummary

_COLUMNS = {"log_loss": ("log loss", 4), "normalised_entropy": ("NE", 4), "auc": ("AUC", 4)} | {
    "calibration": ("calib.", 3)
}
"""Of each metric its title and digits."""


def print_metrics(slices: dict[str, Any]) -> None:
    """A row for each slice, task and source (the model, or the truth of a simulated log)."""
    found = table("slice", "task", "from", numbers=("rows", *(title for title, _ in _COLUMNS.values())))
    found.add_column("")
    for name, sources in slices.items():
        for source, tasks in sources.items():
            for task, told in tasks.items():
                values = (number(told[metric], digits) for metric, (_, digits) in _COLUMNS.items())
                found.add_row(name, task, source, f"{told['rows']:,}", *values, _remark(told))
    print_table(found)


def number(value: float | None, digits: int) -> str:
    """A metric, or a dash where it is undefined: NaN, which JSON keeps as null.

    Example:
        >>> number(0.75, 4), number(float("nan"), 2), number(None, 2)
        ('0.7500', '-', '-')
    """
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def outcome_of(summary: "RunSummary", log: Path) -> Outcome:
    """What a finished training tells MLflow."""
    return Outcome(
        metrics={**summary.metrics, "impressions": summary.impressions, "parameters": summary.parameters},
        history=summary.history,
        tags={"schema_fingerprint": summary.schema_fingerprint},
        logs=[log],
        watermark=summary.watermark,
    )


def _remark(found: dict[str, Any]) -> str:
    """Why a metric is undefined, or that the model is worthless here."""
    rows, positives = found["rows"], found["positives"]
    if not rows:
        return "no row has a label"
    if positives in (0, rows):
        return f"no {'negatives' if positives else 'positives'} among {rows:,} rows"
    return "no better than always predicting the mean" if (found["normalised_entropy"] or 0.0) >= 1.0 else ""
