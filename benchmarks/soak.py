"""A service under load for a long while: releases every minute, updates every second, no request failed, nothing grows.

``python -m benchmarks.soak [--minutes 20] [--load .7]``: ``adsieve serve`` with some workers over an index of the real
commands. First the rate that it holds is found by a closed loop of some seconds; then requests arrive by a Poisson
process at ``--load`` times that rate, or at ``--rate``. Every minute both bundles are sealed anew, an index is built
with the updates of the day merged, published, and old releases are pruned; every second bids, takedowns, changed and
new ads are appended. Each worker's memory, descriptors and threads are read every five seconds.

A request failed where its status is not 200 or its connection ended; it is told what was going on when it was due. What
a worker holds is judged from the third release on: medians of each release's time, and their slope, those in which it
wrote the overlay and those in which it did not each among themselves. A run that is too short for a slope misses its
targets, and so does one with fewer releases or updates than the schedule has. The command's own jobs run on the same
cores, behind the service. Its line is as long as ``MAX_IN_FLIGHT`` unless ``--set`` says otherwise: the shorter one of
its defaults is for overloads, and refuses one of some hundred random arrivals at .7.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec

from benchmarks.harness import Target, finish, parser
from benchmarks.overload_client import Client, Report, packed, poisson_moments
from benchmarks.serving_processes import READY, Server, free_port, start
from benchmarks.serving_requests import bodies
from benchmarks.soak_memory import Held, by_period, growth, held_by, most, rise
from benchmarks.soak_world import Shop
from service.settings import Settings

FIRST_JUDGED = 3
"""Releases that were loaded meanwhile before memory is judged."""
SAMPLE_S, UPDATE_S, RELEASE_S, CALIBRATION_S = 5.0, 1.0, 60.0, 5.0
MAX_GROWTH, MAX_MORE = 0.03, 2.0
"""Of memory; of descriptors, threads and mapped files. One that is leaked by each release is more in twenty minutes."""
MIN_LOAD, MIN_UPDATES = 0.7, 0.9
"""Of what the service holds; lots a second."""
CANDIDATES = 500
LONG_LINE = {"ADSIEVE_MAX_WAITING": str(Settings.model_fields["max_in_flight"].default)}
_CONNECTIONS, _CLOSED = 32, 8


@dataclass
class Watched:
    """What was seen of the workers; ``loaded`` are the moments (monotonic) at which a release served everywhere.

    ``built`` and ``taken_up`` are the stretches in which the nightly job ran and in which its release was loaded.
    """

    held: dict[int, list[Held]] = field(default_factory=dict)
    loaded: list[float] = field(default_factory=list)
    built: list[tuple[float, float]] = field(default_factory=list)
    taken_up: list[tuple[float, float]] = field(default_factory=list)
    updates: int = 0
    degraded: int = 0
    errors: list[str] = field(default_factory=list)


def main() -> int:
    """Run and print; see the module."""
    options = _options()
    with TemporaryDirectory(prefix="adsieve-soak-") as name:
        shop = Shop(Path(name), options.ads, options.world)
        shop.publish()
        server = _serve(shop, Path(name), options)
        try:
            server.wait(msgspec.json.encode(_bodies(options, 1)[0]))
            figures, targets = asyncio.run(_soak(server, shop, options))
        finally:
            server.stop()
            options.log.write_bytes(server.log.read_bytes()) if options.log else None
    return finish(options, figures, targets)


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--load", type=float, default=0.7, help="of the rate that the service holds")
    options.add_argument("--rate", type=float, help="requests a second, instead of a load")
    options.add_argument("--every", type=float, default=RELEASE_S, help="seconds from one release to the next")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--ads", type=int, default=20_000)
    options.add_argument("--world", type=Path, help="a world of benchmarks.serving_world; made for this run otherwise")
    options.add_argument("--set", action="append", default=[], metavar="ADSIEVE_NAME=VALUE", help="of the service")
    options.add_argument("--log", type=Path, help="keep what the service printed there")
    return options.parse_args()


def _serve(shop: Shop, work: Path, options: argparse.Namespace) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "adsieve", "serve", "--store", str(shop.store.root), "--port", str(port)]
    command += ["--local", str(work / "local"), "--log-level", "warning", "--workers", str(options.workers)]
    return start("adsieve", command, port=port, log=work / "serve.log", env=_settings(options), ready=READY)


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """Variables of the service."""
    return LONG_LINE | dict(entry.split("=", 1) for entry in options.set)


def _bodies(options: argparse.Namespace, count: int) -> list[dict[str, Any]]:
    """Of both stages by turns."""
    stages = ("light", "full")
    drawn = {stage: bodies(count, num_ads=options.ads, candidates=CANDIDATES, stage=stage) for stage in stages}
    return [body for pair in zip(*drawn.values(), strict=True) for body in pair]


async def _soak(server: Server, shop: Shop, options: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    requests = [packed("/rank", msgspec.json.encode(body)) for body in _bodies(options, 16)]
    calibrating = Client(server.port, requests, most=_CLOSED)
    held = await calibrating.closed_loop(_CLOSED, CALIBRATION_S)
    calibrating.close()
    rate = options.rate or options.load * len(held.having(200)) / held.seconds
    seconds, watched, stop = 60 * options.minutes, Watched(), asyncio.Event()
    client = Client(server.port, requests, seed=1, on_answer=lambda body: _see(body, watched))
    await client.open(_CONNECTIONS)
    jobs = [
        asyncio.create_task(_repeat(lambda: _sample(server, watched), SAMPLE_S, stop, watched)),
        asyncio.create_task(_repeat(lambda: _update(shop, watched), UPDATE_S, stop, watched)),
        asyncio.create_task(_repeat(lambda: _release(shop, server, watched), options.every, stop, watched)),
    ]
    report = await client.run(poisson_moments(rate, seconds, seed=2))
    stop.set()
    await asyncio.gather(*jobs)
    client.close()
    return _judged(report, watched, rate, len(held.having(200)) / held.seconds, options)


def _see(body: bytes, watched: Watched) -> None:
    watched.degraded += b'"degraded":null' not in body


async def _repeat(work: Callable[[], None], pause_s: float, stop: asyncio.Event, watched: Watched) -> None:
    """Do blocking work every so many seconds; what it raises is kept, and it goes on."""
    while not stop.is_set():
        due = time.monotonic() + pause_s
        try:
            await asyncio.to_thread(work)
        except Exception as error:
            watched.errors.append(f"{type(error).__name__}: {error}")
        try:
            await asyncio.wait_for(stop.wait(), max(0.0, due - time.monotonic()))
        except TimeoutError:
            continue


def _sample(server: Server, watched: Watched) -> None:
    for process in server.tree():
        if any("spawn_main" in part for part in process.cmdline()):
            watched.held.setdefault(process.pid, []).append(held_by(process.pid))


def _update(shop: Shop, watched: Watched) -> None:
    shop.update(watched.updates)
    watched.updates += 1


def _release(shop: Shop, server: Server, watched: Watched) -> None:
    """Publish, and wait until nothing but this release is served by any worker."""
    began = time.monotonic()
    release = shop.publish()
    published = time.monotonic()
    watched.built.append((began, published))
    end = published + RELEASE_S
    while time.monotonic() < end:
        text = httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=30).text
        serving = [line for line in text.splitlines() if line.startswith("adsieve_release_loaded_timestamp_seconds{")]
        if len(serving) == 1 and f'release="{release}"' in serving[0]:
            watched.loaded.append(time.monotonic())
            watched.taken_up.append((published, watched.loaded[-1]))
            return
        time.sleep(0.25)
    raise TimeoutError(f"release {release} does not serve alone after {RELEASE_S:g} s")


def _judged(
    report: Report, watched: Watched, rate: float, capacity: float, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Target]]:
    statuses = Counter(sample.status for sample in report.samples)
    failed = len(report.samples) - statuses[200]
    figures: dict[str, Any] = {
        "schedule": f"{options.minutes:g} minutes, Poisson arrivals, {CANDIDATES} candidates, light and full by turns",
        "seconds from one release to the next": options.every,
        "workers": options.workers,
        "settings of the service": _settings(options),
        "rate of the closed loop, requests/s": capacity,
        "rate of the soak, requests/s": rate,
        "load": rate / capacity,
        "requests": len(report.samples),
        "statuses, 0 for a connection that ended": dict(sorted(statuses.items())),
        **_failures(report, watched),
        "degraded answers": watched.degraded,
        "p50 and p99, ms": f"{report.quantile_ms(0.5):.2f}, {report.quantile_ms(0.99):.2f}",
        "sent too late, p99, ms": report.late_ms(0.99),
        "share of a core that the generator took": report.core_share,
        "releases loaded": len(watched.loaded),
        "seconds to build and publish one, to load one": _medians(watched.built, watched.taken_up),
        "lots of updates": watched.updates,
        "errors of the jobs": watched.errors,
        "workers seen": len(watched.held),
    }
    grown: dict[str, list[float]] = {"pss": [], "anonymous": [], "files": [], "threads": [], "gone": []}
    for number, samples in enumerate(watched.held.values()):
        periods = by_period(samples, watched.loaded)
        for place, one in enumerate(periods, 1):
            figures[f"worker {number}, after release {place:2}"] = (
                f"PSS {one.pss:.1f} MiB, RSS {one.rss:.1f}, anonymous {one.anonymous:.1f}; {one.files:g} files, "
                f"{one.sockets:g} sockets, {one.threads:g} threads, {one.gone:g} mapped files that are gone"
                f"{'; writes the overlay' if round(one.writes) else ''}"
            )
        judged = periods[FIRST_JUDGED - 1 :]
        writes = [one.writes for one in judged]
        for name in ("pss", "anonymous"):
            grown[name].append(growth([getattr(one, name) for one in judged], writes))
        for name in ("files", "threads", "gone"):
            grown[name].append(rise([getattr(one, name) for one in judged], writes))
    seconds = 60 * options.minutes
    targets = [
        Target("load", round(rate / capacity, 3), at_least=MIN_LOAD),
        Target("releases loaded", len(watched.loaded), at_least=seconds // options.every - 1),
        Target("lots of updates", watched.updates, at_least=MIN_UPDATES * seconds / UPDATE_S),
        Target("requests that failed", failed, at_most=0),
        Target("errors of the jobs", len(watched.errors), at_most=0),
        Target("workers that were lost", len(watched.held) - options.workers, at_most=0),
        Target("growth of PSS after the third release", most(grown["pss"]), at_most=MAX_GROWTH),
        Target("growth of anonymous memory after the third release", most(grown["anonymous"]), at_most=MAX_GROWTH),
        Target("descriptors of files more than after the third release", most(grown["files"]), at_most=MAX_MORE),
        Target("threads more than after the third release", most(grown["threads"]), at_most=MAX_MORE),
        Target("mapped files that are gone, more than after the third", most(grown["gone"]), at_most=MAX_MORE),
    ]
    return figures, targets


def _failures(report: Report, watched: Watched) -> dict[str, str]:
    """Failed requests of all, by what was going on when they were due; both clocks are the same one where /proc is."""
    found = {"while a release was built": Counter[bool](), "while one was loaded": Counter[bool]()}
    found["meanwhile"] = Counter()
    for sample in report.samples:
        if any(begin <= sample.due < end for begin, end in watched.taken_up):
            when = "while one was loaded"
        elif any(begin <= sample.due < end for begin, end in watched.built):
            when = "while a release was built"
        else:
            when = "meanwhile"
        found[when][sample.status != 200] += 1
    return {f"failed {when}": f"{counts[True]} of {counts.total()}" for when, counts in found.items()}


def _medians(*stretches: list[tuple[float, float]]) -> str:
    lengths = [[end - begin for begin, end in one] or [float("nan")] for one in stretches]
    return ", ".join(f"{median(one):.1f}" for one in lengths)


if __name__ == "__main__":
    sys.exit(main())
