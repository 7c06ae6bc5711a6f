"""What a process holds over time: memory, descriptors, threads, mapped files that are gone; and whether it grows."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from indexing.overlay_lock import LOCK
from service.overlays import FOLDER


@dataclass(frozen=True)
class Held:
    """Of one process at one moment (monotonic seconds); MiB.

    ``pss`` counts a page that n processes map as one n-th, ``anonymous`` is what is no page of a file. ``files`` are
    descriptors but for sockets, ``gone`` mapped files whose name is gone. ``writes`` is 1 where it writes an overlay,
    for which it holds a pin tower too.
    """

    at: float
    pss: float
    rss: float
    anonymous: float
    files: int
    sockets: int
    threads: int
    gone: int
    writes: float = 0


def held_by(pid: int) -> Held:
    """As the system tells it now.

    Raises:
        OSError: It ended.
    """
    root = Path("/proc") / str(pid)
    rollup = dict(line.split(":", 1) for line in (root / "smaps_rollup").read_text().splitlines()[1:])
    links = [_link(root / "fd" / name) for name in os.listdir(root / "fd")]
    sockets = sum(link.startswith("socket:") for link in links)
    writes = any(link.endswith(f"/{LOCK}") and Path(link).parent.parent.name == FOLDER for link in links)
    status = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines())
    gone = {line.split(maxsplit=5)[5] for line in (root / "maps").read_text().splitlines() if "(deleted)" in line}
    return Held(
        at=time.monotonic(),
        pss=_mib(rollup["Pss"]),
        rss=_mib(rollup["Rss"]),
        anonymous=_mib(rollup["Anonymous"]),
        files=len(links) - sockets,
        sockets=sockets,
        threads=int(status["Threads"]),
        gone=len(gone),
        writes=int(writes),
    )


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _mib(text: str) -> float:
    return int(text.split()[0]) / 1024


def by_period(samples: Sequence[Held], starts: Sequence[float]) -> list[Held]:
    """One for each period that ends where the next begins: medians, of memory and of counts alike."""
    found = []
    for start, end in zip(starts, [*starts, float("inf")][1:], strict=True):
        inside = [sample for sample in samples if start <= sample.at < end]
        if inside:
            fields = {name: median(getattr(sample, name) for sample in inside) for name in Held.__dataclass_fields__}
            found.append(Held(**fields))
    return found


MIN_VALUES = 3


def rise(values: Sequence[float], kinds: Sequence[float] | None = None) -> float:
    """By how much values rose from the first to the last: the median slope of all pairs, times the steps.

    One odd value moves it little (Theil-Sen). NaN for fewer than ``MIN_VALUES`` of any kind, which show no slope.

    Args:
        values: In order.
        kinds: Of each; pairs of one kind alone count. All are of one unless given.

    Example:
        >>> rise([100.0, 101.0, 102.0, 190.0, 104.0])
        4.0
        >>> rise([100.0, 101.0, 102.0, 153.0, 104.0, 155.0], [0, 0, 0, 1, 0, 1])
        5.0
        >>> rise([100.0, 101.0])
        nan
    """
    array, kind = np.asarray(values, float), np.zeros(len(values)) if kinds is None else np.round(kinds)
    if max(np.unique_counts(kind).counts, default=0) < MIN_VALUES:
        return float("nan")
    first, second = np.triu_indices(len(array), 1)
    first, second = first[kind[first] == kind[second]], second[kind[first] == kind[second]]
    return float(np.median((array[second] - array[first]) / (second - first))) * (len(array) - 1)


def growth(values: Sequence[float], kinds: Sequence[float] | None = None) -> float:
    """The rise as a share of the median.

    Example:
        >>> growth([100.0, 101.0, 102.0, 190.0, 104.0])
        0.039...
    """
    return rise(values, kinds) / median(values) if values else float("nan")


def most(values: Sequence[float]) -> float:
    """The largest; NaN where one is NaN, or there is none.

    Example:
        >>> most([0.5, float("nan")])
        nan
    """
    return max(values) if values and not any(value != value for value in values) else float("nan")
