"""How long `adsieve simulate --preset million` takes: a million candidate rows in about a minute."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil

from adlogs.simulate import simulate
from benchmarks.harness import Target, finish, parser

WORLD = "million"


def main() -> int:
    """Simulate once, in a temporary directory."""
    options = parser(__doc__).parse_args()
    root = Path(tempfile.mkdtemp(prefix="adsieve-simulate-"))
    try:
        start = time.perf_counter()
        summary = simulate(root / "log", WORLD)
        seconds = time.perf_counter() - start
    finally:
        shutil.rmtree(root)
    memory = psutil.Process().memory_info().rss / 2**30
    figures = {
        "candidate rows": summary.num_candidates,
        "seconds": seconds,
        "rows a second": summary.num_candidates / seconds,
        "resident memory at the end, GiB": memory,
    }
    targets = [
        Target("candidate rows", summary.num_candidates, at_least=1e6),
        Target("seconds for a million candidate rows", seconds * 1e6 / summary.num_candidates, at_most=75),
    ]
    return finish(options, figures, targets)


if __name__ == "__main__":
    sys.exit(main())
