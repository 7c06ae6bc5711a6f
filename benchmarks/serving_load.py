"""Blocks of load by turns over servers that all live: rates and quantiles as medians of the rounds, and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.serving_processes import Server, memory_of
from benchmarks.serving_wrk import Load, run_wrk, write_script

WARM_S = 1.0

Case = tuple[str, int]
"""Name of a set of bodies, such as ``light, 1000 candidates``, and connections."""


@dataclass(frozen=True)
class Schedule:
    """How long and how often."""

    rounds: int
    seconds: float
    connections: tuple[int, ...]


@dataclass
class Measured:
    """Loads of each case and system, one a round; ``bystanders`` is the largest share of a core that others took."""

    loads: dict[tuple[Case, str], list[Load]] = field(default_factory=dict)
    bystanders: float = 0.0

    def ratio(self, case: Case, name: str, other: str) -> float:
        """Requests a second of one system by those of another, median of the rounds; NaN where one did not run."""
        if (case, name) not in self.loads or (case, other) not in self.loads:
            return float("nan")
        pairs = zip(self.loads[case, name], self.loads[case, other], strict=True)
        return median(ours.rate / theirs.rate for ours, theirs in pairs)

    def p50(self, case: Case, name: str) -> float:
        """Median of the rounds, milliseconds."""
        return median(load.p50 for load in self.loads[case, name])

    def figures(self) -> dict[str, Any]:
        """By case and system."""
        found: dict[str, Any] = {}
        for ((bodies, connections), name), loads in self.loads.items():
            rate, p50, p99 = (median(getattr(load, part) for load in loads) for part in ("rate", "p50", "p99"))
            told = f"{rate:,.1f} requests/s, p50 {p50:.3f} ms, p99 {p99:.3f} ms"
            found[f"{bodies}, {connections} connections, {name}"] = told
        return found


def measure(
    servers: Sequence[Server], cases: Mapping[str, Sequence[bytes]], schedule: Schedule, work: Path, into: Measured
) -> None:
    """Rounds of blocks: in each round and for each case every server is warmed and loaded once, one after another."""
    scripts = {
        (server.title, bodies): write_script(given, server.all_headers, work / f"{place}-{number}")
        for place, server in enumerate(servers)
        for number, (bodies, given) in enumerate(cases.items())
    }
    for _ in range(schedule.rounds):
        for bodies in cases:
            for connections in schedule.connections:
                for server in servers:
                    script = scripts[server.title, bodies]
                    run_wrk(server.url, script, connections=connections, seconds=WARM_S)
                    others = [other for other in servers if other is not server]
                    before = sum(other.cpu_s() for other in others)
                    load = run_wrk(server.url, script, connections=connections, seconds=schedule.seconds)
                    taken = (sum(other.cpu_s() for other in others) - before) / schedule.seconds
                    into.loads.setdefault(((bodies, connections), server.title), []).append(load)
                    into.bystanders = max(into.bystanders, taken)


def memory(servers: Sequence[Server], title: str) -> dict[str, Any]:
    """USS of the largest process, which is a worker, and of all processes together; of Redis beside it."""
    found: dict[str, Any] = {}
    for server in servers:
        own = server.memory()
        total, worker = sum(one.uss_mib for one in own), own[0]
        for other in server.beside:
            found[f"{title}, {server.title}, Redis beside it, MiB USS"] = memory_of(other.pid).uss_mib
        largest = f"{worker.uss_mib:.0f} largest, {worker.anonymous_mib:.0f} of it no file's"
        found[f"{title}, {server.title}, MiB USS"] = f"{largest}; {total:.0f} all {len(own)} processes"
    return found
