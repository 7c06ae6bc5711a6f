"""What the lightweight stage keeps: runs `adsieve demo` and reads the recall of the heavy top 10 from its summary.

Requests have exactly 1,000 eligible ads, all scored by the teacher; 100 survive. Recall is at equal bids, per scenario.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Target, finish, parser
from benchmarks.main_job import run_demo, student_figures

RECALL_FLOOR = 0.90


def main() -> int:
    """One run of the demo at its normal size."""
    options = parser(__doc__).parse_args()
    with TemporaryDirectory(prefix="adsieve-funnel-") as directory:
        summary = run_demo(Path(directory) / "demo")
    figures = {"seconds": summary["seconds"], **student_figures(summary)}
    targets = [
        Target(f"{scenario}: heavy top 10 within 100 of 1,000, equal bids", found["recall_equal_bids"], at_least=RECALL_FLOOR)
        for scenario, found in summary["recall"].items()
    ]
    return finish(options, figures, targets)


if __name__ == "__main__":
    sys.exit(main())
