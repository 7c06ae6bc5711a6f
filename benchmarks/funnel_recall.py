"""What the lightweight stage keeps: runs `adsieve demo` and reads the recall of the heavy top 10 from its summary.

Requests have exactly 1,000 eligible ads, all scored by the teacher; 100 survive. Recall is at equal bids, by scenario.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Target, finish, parser
from benchmarks.main_job import figures, run_demo

RECALL_FLOOR = 0.90
EQUAL_BIDS = "equal bids"


def main() -> int:
    """One run of the demo at its normal size."""
    options = parser(__doc__).parse_args()
    with TemporaryDirectory(prefix="adsieve-funnel-") as directory:
        summary = run_demo(Path(directory) / "demo")
    targets = [
        Target(f"{row['scenario']}, {row['order']}: recall of the student", row["student"], at_least=RECALL_FLOOR)
        for row in summary["recall"]
        if row["order"].startswith(EQUAL_BIDS)
    ]
    return finish(options, figures(summary), targets)


if __name__ == "__main__":
    sys.exit(main())
