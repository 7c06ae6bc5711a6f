"""What every benchmark shares: its options, the machine it ran on, its targets, and how it prints.

``python -m benchmarks.NAME [--json] [--check]``: ``--json`` prints one JSON object, ``--check`` exits 1 where a target
is missed.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

LIBRARIES = ("numpy", "pyarrow", "torch", "torchrec", "onnxruntime", "faiss-cpu")


@dataclass(frozen=True)
class Target:
    """One figure that an issue asks for; exactly one bound is set."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the figure is inside its bound; NaN never is."""
        above = self.at_least is None or self.value >= self.at_least
        below = self.at_most is None or self.value <= self.at_most
        return bool(above and below and self.value == self.value)  # numpy has a truth of its own


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    return options


def machine() -> dict[str, Any]:
    """Processor, cores, memory and library versions: what a figure means nothing without."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
        "date": datetime.now(UTC).date().isoformat(),
    }


def finish(options: argparse.Namespace, figures: Mapping[str, Any], targets: list[Target]) -> int:
    """Print figures, targets and machine; the exit code is 1 only under ``--check`` with a target missed."""
    if options.json:
        document = {
            "figures": figures,
            "targets": [asdict(target) | {"met": target.met} for target in targets],
            "machine": machine(),
        }
        json.dump(document, sys.stdout, indent=2, default=_plain)
        print()
    else:
        _print_tables(figures, targets)
    return int(options.check and not all(target.met for target in targets))


def _plain(value: Any) -> Any:
    """A scalar of numpy as Python has it."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"expected a figure that JSON has, got {value!r}")


def _print_tables(figures: Mapping[str, Any], targets: list[Target]) -> None:
    console = Console()
    table = Table("figure", "value", box=None)
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    for target in targets:
        bound = f"at least {target.at_least}" if target.at_least is not None else f"at most {target.at_most}"
        console.print(
            f"{'met   ' if target.met else 'MISSED'} {target.name}: {target.value:.4g}, {bound}", highlight=False
        )
    console.print(json.dumps(machine()), highlight=False, soft_wrap=True)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
