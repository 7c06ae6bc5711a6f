"""What the lightweight stage keeps: runs `adsieve demo` and reads the recall of the heavy top 10 from its reports.

Requests have exactly 1,000 eligible ads, all scored by the teacher; 100 survive. Recall is at equal bids, by scenario;
the utility lost is the share of the heavy top 10's that its ten best of the survivors lack, in every order.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Target, finish, parser
from benchmarks.main_job import figures, run_demo

RECALL_FLOOR = 0.97
MOST_UTILITY_LOST = 0.01
SURVIVORS = 100
EQUAL_BIDS = "equal bids"


def main() -> int:
    """One run of the demo at its normal size."""
    options = parser(__doc__).parse_args()
    with TemporaryDirectory(prefix="adsieve-funnel-") as directory:
        out = Path(directory) / "demo"
        summary = run_demo(out)
        lost = {name: value for report in sorted(out.glob("*/report/report.json")) for name, value in _lost(report)}
    targets = [
        Target(f"{row['scenario']}, {row['order']}: recall of the student", row["student"], at_least=RECALL_FLOOR)
        for row in summary["recall"]
        if row["order"].startswith(EQUAL_BIDS)
    ]
    targets += [Target(name, value, at_most=MOST_UTILITY_LOST) for name, value in lost.items()]
    return finish(options, figures(summary), targets)


def _lost(report: Path) -> Iterator[tuple[str, float]]:
    """Utility that the student's survivors lose, by scenario and order."""
    for evaluation in json.loads(report.read_text())["evaluations"]:
        at = evaluation["recall"]["survivors"].index(SURVIVORS)
        for curve in evaluation["recall"]["curves"]:
            if curve["ranking"] == "student":
                yield f"{evaluation['scenario']}, {curve['order']}: utility lost", curve["utility_lost"][at]


if __name__ == "__main__":
    sys.exit(main())
