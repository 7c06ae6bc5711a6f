"""What a server does with twice the load that it can hold.

One ``adsieve serve`` with two workers over the world of ``benchmarks.serving``. For each stage and round: a closed loop
of a few connections finds the rate that it holds; then requests arrive by a Poisson process, at .8 of that rate, at 2
times, and at .8 again. Latency counts from the moment at which a request was due (``benchmarks.overload_client``).
Server and generator share the cores; the generator is pinned to the last one and, where this user may, given priority,
so that it is never what limits: its share of that core and how late it sent are printed. As many connections as it may
use are open before the load, and may rest until it comes to them. A block goes on until ``--requests`` were sent, so
that its p99 is not that of a handful where few are ranked a second. Each round draws other moments, the same for both
blocks at .8. Figures are medians of the rounds.

Targets: the accepted requests of the overload keep their p99 within twice that at .8 load, the others get 503 with
Retry-After; in the first second after the overload the p99 is within twice that at .8 load again and no more is refused
than when the same requests came to a server at rest.
"""

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psutil
import uvicorn

from benchmarks.harness import Target, finish, parser
from benchmarks.overload_client import Client, Report, Sample, packed, poisson_moments
from benchmarks.serving_processes import READY, Server, free_port, start
from benchmarks.serving_requests import bodies
from benchmarks.serving_world import World, make_world

STAGES = ("light", "full")
CORES, CANDIDATES, BODIES = 2, 1_000, 32
USUAL, TWICE = 0.8, 2.0
MAX_RATIO, MAX_REFUSED_AFTER = 2.0, 0.02
_CLOSED, _CONNECTIONS = 8, 512
"""Of the closed loop, for each worker: more than may stand in its line would be refused and ask again at once."""
_WARM_S, _AFTER_S = 1.0, 1.0
_PRIORITY = -10
LONG_REST = {"ADSIEVE_HEADER_TIMEOUT_S": "600"}
"""Connections are opened long before some of them bring their first request."""


@dataclass
class Round:
    """One round: the rate that was held, and blocks of load; ``after`` begins where ``twice`` ends.

    ``connections`` are those that each worker had taken before the load.
    """

    held: float
    connections: list[int]
    usual: Report
    twice: Report
    after: Report

    @property
    def first_after(self) -> Report:
        """The first second after the overload."""
        return _first_second(self.after)

    @property
    def refused_after(self) -> float:
        """What the overload left behind: shares refused in the first second after it and in that of the usual load."""
        return _refused(self.first_after) - _refused(_first_second(self.usual))

    @property
    def ratio(self) -> float:
        """p99 of what was accepted, at twice the load by that at the usual one."""
        return self.twice.quantile_ms(0.99) / self.usual.quantile_ms(0.99)

    @property
    def ratio_after(self) -> float:
        return self.first_after.quantile_ms(0.99) / self.usual.quantile_ms(0.99)


@dataclass
class Found:
    """Rounds of each stage."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)


def main() -> int:
    """Measure both stages and print the figures beside the targets."""
    options = _options()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    found = Found()
    with TemporaryDirectory(prefix="adsieve-overload-") as name:
        world = make_world(Path(name) / "world", options.ads, with_heavy=True, with_plain=False)
        server = _serve(world, Path(name), options)
        try:
            server.wait(_packed_bodies(world, "full", 1)[0].partition(b"\r\n\r\n")[2])
            os.sched_setaffinity(0, cores[-1:])  # after the start: the server inherits what holds then
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
            for number in range(options.rounds):
                for stage in options.stages:
                    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
                        one = runner.run(_round(server, _packed_bodies(world, stage, BODIES), number, options))
                    found.rounds.setdefault(stage, []).append(one)
                    print(f"{stage}: held {one.held:.0f}/s, ratio {one.ratio:.2f}", file=sys.stderr, flush=True)
        finally:
            server.stop()
            os.sched_setaffinity(0, cores)
    return finish(options, *_judged(found, cores, options))


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--stages", type=lambda text: text.split(","), default=list(STAGES), help=", ".join(STAGES))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=15.0, help="of each block of load, at least")
    options.add_argument("--requests", type=int, default=1_000, help="of each block of load, at least")
    options.add_argument("--calibration", type=float, default=4.0, help="seconds of the closed loop")
    options.add_argument("--workers", type=int, default=CORES)
    options.add_argument("--ads", type=int, default=100_000, help="in the index, a multiple of 100,000")
    options.add_argument("--set", action="append", default=[], metavar="ADSIEVE_NAME=VALUE", help="of the server")
    return options.parse_args()


def _serve(world: World, work: Path, options: argparse.Namespace) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "adsieve", "serve", "--store", str(world.store), "--port", str(port)]
    command += ["--local", str(work / "local"), "--log-level", "error", "--workers", str(options.workers)]
    return start("adsieve", command, port=port, log=work / "serve.log", env=_settings(options), ready=READY)


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """Variables of the server; those that are not here have their defaults."""
    return LONG_REST | dict(entry.split("=", 1) for entry in options.set)


def _packed_bodies(world: World, stage: str, count: int) -> list[bytes]:
    given = bodies(count, num_ads=world.num_ads, candidates=CANDIDATES, stage=stage)
    return [packed("/rank", msgspec.json.encode(body)) for body in given]


async def _round(server: Server, requests: Sequence[bytes], number: int, options: argparse.Namespace) -> Round:
    warming = Client(server.port, requests)
    closed = _CLOSED * options.workers
    await warming.closed_loop(closed, _WARM_S)
    calibration = await warming.closed_loop(closed, options.calibration)
    warming.close()
    held = len(calibration.having(200)) / calibration.seconds
    client = Client(server.port, requests, seed=1)
    await client.open(_CONNECTIONS)
    connections = _connections(server)
    blocks = []
    for load in (USUAL, TWICE, USUAL):
        seconds = max(options.seconds, options.requests / (load * held))
        moments = poisson_moments(load * held, seconds, seed=number)  # so both usual loads come at the same moments
        blocks.append(await client.run(moments, wait=load != TWICE))
    client.close()
    return Round(held, connections, *blocks)


def _connections(server: Server) -> list[int]:
    workers = [process for process in server.tree() if any("spawn_main" in part for part in process.cmdline())]
    return [sum(one.status == psutil.CONN_ESTABLISHED for one in worker.net_connections()) for worker in workers]


def _judged(found: Found, cores: Sequence[int], options: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {
        "schedule": f"{options.rounds} rounds, at least {options.seconds:g} s and {options.requests} requests a block: "
        f"{USUAL:g}, {TWICE:g}, {USUAL:g} times the rate of a closed loop of {_CLOSED} connections a worker",
        "cores of server and generator together": len(cores),
        "generator": f"pinned to one core, priority {os.getpriority(os.PRIO_PROCESS, 0)}",
        "workers": options.workers,
        "settings": " ".join(f"{name}={value}" for name, value in _settings(options).items()),
        "candidates": CANDIDATES,
        "other load of the machine, average of a minute": psutil.getloadavg()[0],
    }
    targets: list[Target] = []
    for stage, rounds in found.rounds.items():
        figures |= _figures(stage, rounds)
        every = [sample for one in rounds for report in (one.usual, one.twice, one.after) for sample in report.samples]
        targets += [
            Target(
                f"{stage}, p99 accepted at {TWICE:g} by p99 at {USUAL:g}", _median(rounds, "ratio"), at_most=MAX_RATIO
            ),
            Target(
                f"{stage}, p99 of the first second after, by p99 at {USUAL:g}",
                _median(rounds, "ratio_after"),
                at_most=MAX_RATIO,
            ),
            Target(
                f"{stage}, share refused in the first second after, above that in the first at {USUAL:g}",
                _median(rounds, "refused_after"),
                at_most=MAX_REFUSED_AFTER,
            ),
            Target(f"{stage}, neither 200 nor 503 with Retry-After", sum(map(_is_wrong, every)), at_most=0),
        ]
    return figures, targets


def _figures(stage: str, rounds: Sequence[Round]) -> dict[str, Any]:
    found: dict[str, Any] = {f"{stage}, rate held, requests/s": _median(rounds, "held")}
    for name, title in (
        ("usual", f"{USUAL:g} load"),
        ("twice", f"{TWICE:g} load"),
        ("first_after", "first second after"),
    ):
        reports = [getattr(one, name) for one in rounds]
        p50, p99 = (median(report.quantile_ms(quantile) for report in reports) for quantile in (0.5, 0.99))
        rate = median(
            len(report.having(200)) / (max(s.due for s in report.samples) - min(s.due for s in report.samples))
            for report in reports
        )
        refused = median(report.quantile_ms(0.99, 503) for report in reports)
        found[f"{stage}, {title}"] = (
            f"{rate:.0f} answered a second, p50 {p50:.2f} ms, p99 {p99:.2f} ms; "
            f"{median(map(_refused, reports)):.4f} refused, p99 {refused:.2f} ms"
        )
        late, share = max(report.late_ms(0.99) for report in reports), max(report.core_share for report in reports)
        found[f"{stage}, {title}, generator"] = f"at most {share:.2f} of its core, p99 of lateness {late:.2f} ms"
    found[f"{stage}, connections of each worker, by round"] = " ".join(str(one.connections) for one in rounds)
    found[f"{stage}, ratios of p99 by round"] = " ".join(f"{one.ratio:.2f}" for one in rounds)
    found[f"{stage}, ratios after by round"] = " ".join(f"{one.ratio_after:.2f}" for one in rounds)
    statuses = Counter(sample.status for one in rounds for sample in one.twice.samples)
    found[f"{stage}, statuses at {TWICE:g} load"] = dict(sorted(statuses.items()))
    return found


def _median(rounds: Sequence[Round], name: str) -> float:
    return median(getattr(one, name) for one in rounds)


def _first_second(report: Report) -> Report:
    begin = min(sample.due for sample in report.samples)
    samples = [sample for sample in report.samples if sample.due < begin + _AFTER_S]
    return Report(samples, _AFTER_S, report.core_share)


def _refused(report: Report) -> float:
    return len(report.having(503)) / len(report.samples)


def _is_wrong(sample: Sample) -> bool:
    return not (sample.status == 200 or (sample.status == 503 and sample.retry_after))


if __name__ == "__main__":
    sys.exit(main())
