"""Metrics of a heavy ranker as its commands print them; one that is undefined is a dash, with the reason."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modeling.mlflow_run import Outcome

if TYPE_CHECKING:
    from heavy_ranker.run import RunSummary

_COLUMNS = {"log_loss": ("log loss", 9, 4), "normalised_entropy": ("NE", 7, 4), "auc": ("AUC", 7, 4)} | {
    "calibration": ("calib.", 7, 3)
}
"""Of each metric its title, width and digits."""


def print_metrics(slices: dict[str, Any]) -> None:
    """A row for each slice, task and source (the model, or the truth of a simulated log)."""
    titles = " ".join(f"{title:>{width}}" for title, width, _ in _COLUMNS.values())
    print(f"{'slice':<12} {'task':<16} {'from':<6} {'rows':>9} {titles}")
    for name, sources in slices.items():
        for source, tasks in sources.items():
            for task, found in tasks.items():
                values = " ".join(
                    number(found[metric], width, digits) for metric, (_, width, digits) in _COLUMNS.items()
                )
                row = f"{name:<12} {task:<16} {source:<6} {found['rows']:>9,} {values}  {_why_undefined(found)}"
                print(row.rstrip())


def number(value: float | None, width: int, digits: int) -> str:
    """A metric, or a dash where it is undefined: NaN, which JSON keeps as null.

    Example:
        >>> number(0.75, 7, 4), number(float("nan"), 4, 2), number(None, 3, 2)
        (' 0.7500', '   -', '  -')
    """
    return f"{'-':>{width}}" if value is None or math.isnan(value) else f"{value:>{width}.{digits}f}"


def outcome_of(summary: "RunSummary", log: Path) -> Outcome:
    """What a finished training tells MLflow."""
    return Outcome(
        metrics={**summary.metrics, "impressions": summary.impressions, "parameters": summary.parameters},
        history=summary.history,
        tags={"schema_fingerprint": summary.schema_fingerprint},
        logs=[log],
        watermark=summary.watermark,
    )


def _why_undefined(found: dict[str, Any]) -> str:
    rows, positives = found["rows"], found["positives"]
    if not rows:
        return "no row has a label"
    if positives in (0, rows):
        return f"no {'negatives' if positives else 'positives'} among {rows:,} rows"
    return ""
