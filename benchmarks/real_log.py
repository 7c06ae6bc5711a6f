"""Quality on the real log's fixed split: test AUC of the heavy ranker and of the click student.

Runs `adsieve demo --kuairand PATH`, whose teacher learns from the first half of the training rows and scores the second
half for the student; then trains the heavy ranker on all training rows, as one would to serve it.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Target, finish, parser
from benchmarks.main_job import figures, run_demo, winner_auc

HEAVY_FLOORS = {"click": 0.740, "conv_engage": 0.765}
STUDENT_FLOOR = 0.735


def main() -> int:
    """One run of each."""
    arguments = parser(__doc__)
    arguments.add_argument("path", type=Path, help="folder of the KuaiRand-Pure log")
    options = arguments.parse_args()
    with TemporaryDirectory(prefix="adsieve-real-") as directory:
        out = Path(directory) / "demo"
        summary = run_demo(out, "--kuairand", str(options.path))
        heavy = _heavy_on_all_rows(out)
    aucs = {f"heavy ranker on all training rows, {task}": found["auc"] for task, found in heavy.items()}
    targets = [
        Target(f"heavy test AUC, {task}", heavy[task]["auc"], at_least=floor) for task, floor in HEAVY_FLOORS.items()
    ]
    targets.append(winner_auc(summary, "student", "click", at_least=STUDENT_FLOOR))
    return finish(options, figures(summary) | aucs, targets)


def _heavy_on_all_rows(out: Path) -> dict[str, Any]:
    """Train until the split, judge on the rest; metrics by task."""
    log, split = str(out / "log"), json.loads((out / "log" / "split.json").read_text())["train_until"]
    schema, run, result = (str(out / name) for name in ("heavy-all.yaml", "heavy-all-run", "heavy-all.json"))
    _adsieve("schema", "fit", "kuairand_heavy", "--logs", log, "--out", schema, "--until", split)
    _adsieve("heavy", "train", "--logs", log, "--schema", schema, "--out", run, "--until", split)
    _adsieve("heavy", "evaluate", "--logs", log, "--run", run, "--from", split, "--out", result)
    return json.loads(Path(result).read_text())["slices"]["all"]["model"]


def _adsieve(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "adsieve", *command], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
