"""Quality of the click and engagement student on the real log's fixed split, with whole pools.

Converts the log with 500 test requests whose pool is the 1,000 videos most shown that day. A teacher series out of fold
by user scores the training part, so that the student learns from every training row and from none that its scorer
learned; the heavy ranker that would serve, trained on the whole training part, scores the test part. The student is
sealed, then judged with its own graphs against mature labels and against that heavy ranker.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Target, finish, parser

FOLDS = 3
FULL_REQUESTS = 500
AUC_FLOORS = {"click": 0.742, "conv_engage": 0.772}
MOST_BELOW_HEAVY = {"click": 0.006}
MOST_MISCALIBRATION, MOST_MISCALIBRATION_OF_A_TAB, TAB_ROWS = 0.03, 0.10, 1_000
STANDARD_ERRORS = 2.0
_INTERVAL_IN_STANDARD_ERRORS = 3.92  # width of a 95 % interval
SURVIVORS = 100
STUDENT = ("--epochs", "1")
"""What is changed of the preset: a pass over ten videos a request is long enough, and more learn by heart."""

Row = dict[str, Any]


def main() -> int:
    """One run of each step, one seed."""
    options = _options()
    if options.keep is not None:
        report, seconds = distil_and_judge(options.path, options.keep)
    else:
        with TemporaryDirectory(prefix="adsieve-distill-real-") as directory:
            report, seconds = distil_and_judge(options.path, Path(directory))
    evaluation = report["evaluations"][0]
    figures = {f"{name}: seconds": value for name, value in seconds.items()}
    figures |= _quality(evaluation) | _recall(evaluation["recall"])
    return finish(options, figures, targets(evaluation))


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("path", type=Path, help="folder of the KuaiRand-Pure log")
    options.add_argument("--keep", type=Path, help="directory for everything that is made; what is there is not redone")
    return options.parse_args()


def distil_and_judge(source: Path, out: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """The report, and the seconds of each step; a step whose result is there is left out."""
    log, scored, tested = out / "log", out / "scored", out / "tested"
    steps = _Steps(out)
    steps("convert", log, "convert", "kuairand", source, "--out", log, "--full-requests", FULL_REQUESTS)
    split = json.loads((log / "split.json").read_text())
    until, validate_from = split["train_until"], split["validate_from"]
    heavy, towers = out / "heavy.yaml", out / "towers.yaml"
    of_log, early = ("--logs", log), ("--until", until)
    steps("heavy schema", heavy, "schema", "fit", "kuairand_heavy", *of_log, "--out", heavy, "--until", validate_from)
    steps("towers schema", towers, "schema", "fit", "kuairand_towers", *of_log, "--out", towers, *early)
    train = ("heavy", "train", *of_log, "--schema", heavy, "--preset", "medium", *early)
    folds = ("--series", f"folds:{FOLDS}", "--fold-by", "user_id")
    steps("teacher series", out / "teacher", *train, *folds, "--out", out / "teacher")
    steps("heavy ranker", out / "heavy-run", *train, "--out", out / "heavy-run")
    steps("export", out / "heavy", "heavy", "export", "--run", out / "heavy-run", *of_log, "--out", out / "heavy")
    score = ("heavy", "score", *of_log)
    steps("score training part", scored, *score, "--series", out / "teacher", *early, "--out", scored)
    steps("score test part", tested, *score, "--bundle", out / "heavy", "--from", until, "--out", tested)
    learned = (*of_log, "--candidates", scored / "candidates", *early)
    student, bundle, report = out / "student", out / "bundle", out / "report"
    model = ("--schema", towers, "--scenario", "standard", "--warm-start", "none")
    steps("distil", student, "distill", "train", *learned, *model, *STUDENT, "--out", student)
    steps("seal", bundle, "distill", "publish", "--run", student, *learned, "--out", bundle)
    judged = (*of_log, "--candidates", tested / "candidates", "--from", until)
    steps("judge", report, "distill", "evaluate", "--bundle", bundle, *judged, "--pool-size", 999, "--out", report)
    return json.loads((report / "report.json").read_text()), steps.seconds


class _Steps:
    """Runs our own commands, each unless what it makes is there."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, made: Path, *words: object) -> None:
        if made.exists():
            return
        start = time.perf_counter()
        command = [sys.executable, "-m", "adsieve", *map(str, words)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        self.seconds[name] = round(time.perf_counter() - start, 1)


def _quality(evaluation: Row) -> dict[str, Any]:
    """AUC, calibration and KL on the shown videos, by head and model, with intervals."""
    figures: dict[str, Any] = {}
    for row in _winners(evaluation, "all"):
        name = f"{row['head']}, {row['model']} against {row['against']}"
        for metric in ("auc", "calibration", "kl"):
            if row[metric] is not None:
                low, high = row["intervals"][metric]
                figures[f"{name}: {metric}"] = f"{row[metric]:.4f} ({low:.4f} to {high:.4f})"
    for row in _tabs(evaluation):
        name = f"tab {row['value']}, {row['head']}: calibration, of {row['rows']:,} rows"
        figures[name] = f"{row['calibration']:.3f}, two standard errors {_two_errors(row):.3f}"
    return figures


def _recall(recall: Row) -> dict[str, Any]:
    """What of the heavy top survives, by order and ranking."""
    at = recall["survivors"].index(SURVIVORS)
    figures: dict[str, Any] = {"requests with a whole pool": recall["requests"], "pool": str(recall["pool_size"])}
    for curve in recall["curves"]:
        name = f"heavy top {recall['top_k']} within {SURVIVORS}, {curve['order']}, {curve['ranking']}"
        low, high = curve["recall_low"][at], curve["recall_high"][at]
        figures[name] = f"{curve['recall'][at]:.3f} ({low:.3f} to {high:.3f})"
        figures[f"{name}: utility lost"] = curve["utility_lost"][at]
    return figures


def targets(evaluation: Row) -> list[Target]:
    """What the student's figures are held to."""
    found = []
    labelled = {(row["head"], row["model"]): row for row in _winners(evaluation, "all") if row["against"] == "labels"}
    for head, floor in AUC_FLOORS.items():
        student, heavy = labelled[head, "student"], labelled[head, "teacher"]
        found.append(Target(f"student AUC, {head}", student["auc"], at_least=floor))
        if head in MOST_BELOW_HEAVY:
            below = heavy["auc"] - student["auc"]
            found.append(Target(f"heavy AUC less student AUC, {head}", below, at_most=MOST_BELOW_HEAVY[head]))
        error = abs(student["calibration"] - 1)
        found.append(Target(f"calibration error, {head}", error, at_most=MOST_MISCALIBRATION))
    for row in _tabs(evaluation):
        bound = max(MOST_MISCALIBRATION_OF_A_TAB, _two_errors(row))
        error = abs(row["calibration"] - 1)
        found.append(Target(f"calibration error on tab {row['value']}, {row['head']}", error, at_most=bound))
    return found


def _winners(evaluation: Row, slice_: str) -> list[Row]:
    return [row for row in evaluation["slices"] if (row["stage"], row["slice"]) == ("winners", slice_)]


def _tabs(evaluation: Row) -> list[Row]:
    """The student against labels on each tab with enough rows."""
    rows = [row for row in _winners(evaluation, "tab") if (row["model"], row["against"]) == ("student", "labels")]
    return [row for row in rows if row["rows"] >= TAB_ROWS]


def _two_errors(row: Row) -> float:
    low, high = row["intervals"]["calibration"]
    return STANDARD_ERRORS * (high - low) / _INTERVAL_IN_STANDARD_ERRORS


if __name__ == "__main__":
    sys.exit(main())
