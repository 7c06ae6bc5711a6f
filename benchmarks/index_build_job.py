"""One build in a process of its own: ``python -m benchmarks.index_build_job BUNDLE ADS OUT THREADS [HEAVY]``.

It does what ``adsieve index build --two-tower BUNDLE [--heavy HEAVY]`` does, and prints one JSON object: seconds of the
build, from opening the bundle to the finished index; the process's peaks of memory of its own, sampled every 20 ms, and
of resident memory, which counts pages of mapped files too, though the system takes them back whenever it needs them;
engine, number of ads, and how each head is searched.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from indexing.config import IndexConfig
from indexing.heap import keep_freed_memory
from indexing.nightly import build_index


def main(bundle: str, ads: str, out: str, threads: str, heavy: str | None = None) -> int:
    """Build and report."""
    keep_freed_memory()
    start, samples, done = time.perf_counter(), [_mib("RssAnon")], threading.Event()
    sampler = threading.Thread(target=_sample, args=(samples, done))
    sampler.start()
    try:
        manifest = build_index(
            ads=ads,
            two_tower=Path(bundle),
            heavy=Path(heavy) if heavy is not None else None,
            out=Path(out),
            config=IndexConfig(threads=int(threads)),
        )
        seconds = time.perf_counter() - start
    finally:
        done.set()
        sampler.join()
    found: dict[str, Any] = {
        "seconds": seconds,
        "own_mib": max(samples),
        "before_mib": samples[0],
        "resident_mib": _mib("VmHWM"),
        "engine": manifest.engine,
        "ads": manifest.num_ads,
        "precision_loss": manifest.precision_loss,
        "warnings": manifest.warnings,
        "retrieval": {head: told["kind"] for head, told in manifest.retrieval.items()},
    }
    print(json.dumps(found))
    return 0


def _sample(samples: list[float], done: threading.Event) -> None:
    while not done.wait(0.02):
        samples.append(_mib("RssAnon"))


def _mib(field: str) -> float:
    """Of this process alone: what ``getrusage`` tells begins with the memory of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
