"""The figures of a saved report that fit a table: of each head, and of recall in each order."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STAGES = ("winners", "candidates")


@dataclass(frozen=True)
class ReportFigures:
    """Rows of two tables, as plain data.

    Args:
        quality: One for each stage and head.
        recall: One for each order of ranking; none where no pool is large enough.
    """

    quality: list[dict[str, Any]]
    recall: list[dict[str, Any]]


def report_figures(path: Path, survivors: int) -> ReportFigures:
    """Read them.

    Args:
        path: The report.json that `adsieve distill evaluate` wrote; its first evaluation counts.
        survivors: Number of survivors at which recall is told, one that the report has.
    """
    report = json.loads(path.read_text())["evaluations"][0]
    quality = [_quality(report, stage, task) for stage in STAGES for task in report["tasks"]]
    return ReportFigures(quality, _recall(report, survivors))


def _quality(report: dict[str, Any], stage: str, task: str) -> dict[str, Any]:
    """One row: KL and AUC of the student against the teacher, and the AUC of both against labels where known."""
    rows = {
        (row["model"], row["against"]): row
        for row in report["slices"]
        if (row["stage"], row["slice"], row["head"]) == (stage, "all", task)
    }
    against_teacher = rows["student", "teacher"]
    return {
        "scenario": report["scenario"],
        "slice": stage,
        "head": task,
        "rows": against_teacher["rows"],
        "kl": against_teacher["kl"],
        "auc_against_teacher": against_teacher["auc"],
        "student_auc": rows.get(("student", "labels"), {}).get("auc"),
        "teacher_auc": rows.get(("teacher", "labels"), {}).get("auc"),
    }


def _recall(report: dict[str, Any], survivors: int) -> list[dict[str, Any]]:
    """Recall of the heavy top among the survivors, one row for each order of ranking."""
    found = report["recall"]
    if found is None:
        return []
    at = found["survivors"].index(survivors)
    orders: dict[str, dict[str, float]] = {}
    for curve in found["curves"]:
        orders.setdefault(curve["order"], {})[curve["ranking"].replace(" ", "_")] = curve["recall"][at]
    context = {"scenario": report["scenario"], "requests": found["requests"], "pool_size": found["pool_size"]}
    return [{**context, "order": order, **recalls} for order, recalls in orders.items()]
