"""One build of an index in a process of its own: ``python -m benchmarks.index_build_job BUNDLE ADS OUT``.

Prints one JSON object: seconds of the build, from opening the bundle to the finished index; the process's peak of
resident memory and what it had before, with all modules imported; engine and number of ads.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.peak_memory import peak_memory_bytes


def main(bundle: str, ads: str, out: str, threads: str) -> int:
    """Build and report."""
    before, start = _peak_mib(), time.perf_counter()
    manifest = build_index(
        ads=ads, two_tower=Path(bundle), heavy=None, out=Path(out), config=IndexConfig(threads=int(threads))
    )
    found: dict[str, Any] = {
        "seconds": time.perf_counter() - start,
        "peak_mib": _peak_mib(),
        "before_mib": before,
        "engine": manifest.engine,
        "ads": manifest.num_ads,
        "precision_loss": manifest.precision_loss,
        "warnings": manifest.warnings,
    }
    print(json.dumps(found))
    return 0


def _peak_mib() -> float:
    return peak_memory_bytes() / 2**20


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
