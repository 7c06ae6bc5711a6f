"""What the benchmarks of a GPU share: the device they run on, and medians of interleaved blocks.

``--device cpu`` runs the whole of a benchmark at tiny sizes through the same calls: that shows that it runs, and says
nothing of a GPU.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from benchmarks.harness import parser

BLOCKS, CALLS, TINY_CALLS = 5, 20, 2
WARM_UP_CALLS = 3


def gpu_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark of a GPU."""
    options = parser(description)
    options.add_argument("--device", default="cuda", help="cuda, cuda:1; cpu runs tiny sizes, to try the script")
    return options


def device_fault(name: str, device: str) -> str | None:
    """Why a benchmark cannot run on a device, or None if it can."""
    if device == "cpu" or torch.cuda.is_available():
        return None
    return (
        f"{name} needs a CUDA device: torch {torch.__version__}, built for CUDA {torch.version.cuda}, sees "
        f"{torch.cuda.device_count()}; `--device cpu` tries the script at tiny sizes"
    )


def refuse(fault: str) -> int:
    """Say why nothing is measured; the exit code."""
    print(fault, file=sys.stderr)
    return 1


def described(device: str) -> dict[str, Any]:
    """The device, and how its figures were taken."""
    calls = TINY_CALLS if device == "cpu" else CALLS
    name = "cpu, tiny sizes: no figures of a GPU" if device == "cpu" else torch.cuda.get_device_name(device)
    schedule = f"{BLOCKS} interleaved blocks of {calls} calls each, after {WARM_UP_CALLS}; medians"
    return {"device": name, "schedule": schedule}


def medians_ms(runs: Mapping[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Median milliseconds of a call of each, in interleaved blocks; a call ends when its result is on the host."""
    calls = TINY_CALLS if device == "cpu" else CALLS
    for run in runs.values():
        for _ in range(WARM_UP_CALLS):
            run()
    took: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(BLOCKS):
        for name, run in runs.items():
            for _ in range(calls):
                start = time.perf_counter()
                run()
                took[name].append(time.perf_counter() - start)
    return {name: 1e3 * median(times) for name, times in took.items()}


def compared(part: str, medians: Mapping[str, float], *, baseline: str) -> dict[str, float]:
    """Figures of one part: each median, and how many times faster than the baseline."""
    figures = {f"{part}, {name}, ms": value for name, value in medians.items()}
    ratios = {name: medians[baseline] / value for name, value in medians.items() if name != baseline}
    return figures | {f"{part}, {baseline} over {name}": value for name, value in ratios.items()}
