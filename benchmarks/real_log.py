"""Quality on the real log: runs `adsieve demo --kuairand PATH` and checks the test AUC of teacher and student."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import finish, parser
from benchmarks.main_job import figures, run_demo, winner_auc


def main() -> int:
    """One run on the log's fixed split."""
    arguments = parser(__doc__)
    arguments.add_argument("path", type=Path, help="folder of the KuaiRand-Pure log")
    options = arguments.parse_args()
    with TemporaryDirectory(prefix="adsieve-real-") as directory:
        summary = run_demo(Path(directory) / "demo", "--kuairand", str(options.path))
    targets = [
        winner_auc(summary, "teacher", "click", at_least=0.740),
        winner_auc(summary, "teacher", "conv_engage", at_least=0.765),
        winner_auc(summary, "student", "click", at_least=0.735),
    ]
    return finish(options, figures(summary), targets)


if __name__ == "__main__":
    sys.exit(main())
