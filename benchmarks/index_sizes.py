"""What an index takes, by number of ads: disk by block, time of build, publish, check and export, peak memory.

The bundle and the catalogue of ``benchmarks.index_build_setup`` (two heads of 32 dimensions, 40 features, ids of 4 to
11 bytes), fp16 vectors, no heavy bundle. The build runs in a process of its own, as does the export; publish is into a
directory store on the same file system, where it checks every byte and links the files. ``docs/how-to/sizes.md`` takes
its figures from here.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import finish, parser
from benchmarks.index_build_setup import make_model, seal, write_ads
from indexing.index import Index
from indexing.store import DirectoryStore

SIZES = (100_000, 300_000, 1_000_000)
THREADS = 2
EXPORT = """
import json, sys, time
from pathlib import Path
from indexing.export import export_index
from indexing.index import Index
from indexing.peak_memory import peak_memory_bytes
index, start = Index.open(Path(sys.argv[1]), verify=False), time.perf_counter()
exported = export_index(index, Path(sys.argv[2]))
seconds, peak = time.perf_counter() - start, peak_memory_bytes() / 2**20
print(json.dumps({"seconds": seconds, "peak_mib": peak, "bytes": exported.num_bytes}))
"""


def main() -> int:
    """Measure every size and print the figures."""
    options = parser(__doc__).parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        bundle = seal(make_model(), Path(directory) / "bundle").path
        for num_ads in SIZES:
            figures |= measure(bundle, Path(directory) / str(num_ads), num_ads)
    return finish(options, figures, [])


def measure(bundle: Path, directory: Path, num_ads: int) -> dict[str, Any]:
    """Figures of one size; a number after another ``/`` is per ad."""
    directory.mkdir()
    ads, out = write_ads(directory / "ads", num_ads), directory / "index"
    built = _run("-m", "benchmarks.index_build_job", bundle, ads, out, THREADS)
    store = DirectoryStore(directory / "store")
    publish_s = _seconds(lambda: store.publish(two_tower=bundle, heavy=None, index=out))
    check_s = _seconds(lambda: Index.open(out))
    open_s = _seconds(lambda: Index.open(out, verify=False))
    exported = _run("-c", EXPORT, out, directory / "ads.parquet")
    label = f"{num_ads:,} ads"
    figures = {
        f"{label}: catalogue, bytes an ad": _bytes(ads) / num_ads,
        f"{label}: build s": built["seconds"],
        f"{label}: build, ads/s": num_ads / built["seconds"],
        f"{label}: build, own peak MiB": built["own_mib"],
        f"{label}: build, peak with mapped files MiB": built["resident_mib"],
        f"{label}: publish to a directory s": publish_s,
        f"{label}: check s": check_s,
        f"{label}: open without check s": open_s,
        f"{label}: export s": exported["seconds"],
        f"{label}: export, peak MiB": exported["peak_mib"],
        f"{label}: export, bytes an ad": exported["bytes"] / num_ads,
        f"{label}: index, bytes an ad": _bytes(out) / num_ads,
    }
    return figures | {f"{label}: {path.name}, bytes an ad": _bytes(path) / num_ads for path in sorted(out.iterdir())}


def _run(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{command[1:3]} failed: {result.stderr[-2000:]}")
    return json.loads(result.stdout)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
