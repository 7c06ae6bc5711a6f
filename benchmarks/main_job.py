"""Runs `adsieve demo` in a process of its own and reads what it found; shared by the benchmarks of quality."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Target


def run_demo(out: Path, *options: str) -> dict[str, Any]:
    """The summary of one demo; its output goes to standard error."""
    command = [sys.executable, "-m", "adsieve", "demo", "--out", str(out), *options]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return json.loads((out / "summary.json").read_text())


def figures(summary: dict[str, Any]) -> dict[str, float]:
    """The summary as flat names and values."""
    flat = {"seconds": summary["seconds"]}
    for row in summary["quality"]:
        name = f"{row['scenario']}, {row['slice']}, {row['head']}"
        flat |= {f"{name}: {key}": value for key, value in row.items() if isinstance(value, float)}
    for row in summary["recall"]:
        name = f"{row['scenario']}, {row['order']}, recall of the heavy top 10 in 100 by"
        flat |= {f"{name} {key}": value for key, value in row.items() if isinstance(value, float)}
    for name, stages in summary["latency_ms"].items():
        flat |= {f"{name}, {stage}, ms": value for stage, value in stages.items()}
    return flat


def winner_auc(summary: dict[str, Any], model: str, head: str, *, at_least: float) -> Target:
    """A target for the AUC of ``student`` or ``teacher`` against labels of shown ads."""
    rows = [row for row in summary["quality"] if (row["slice"], row["head"]) == ("winners", head)]
    return Target(f"{model} AUC, {head}", min(row[f"{model}_auc"] for row in rows), at_least=at_least)
