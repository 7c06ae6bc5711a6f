"""Requests a second through the Python client: threads that each ask alone, that are grouped, and many at once.

One server of ``adsieve serve`` with one worker and the client in this process on the same cores; ``standard()`` towers
and a heavy ranker of ``iqiyi()`` sizes. In each round every way is loaded for some seconds, one after another; figures
are medians of the rounds, ratios medians of the rounds' ratios. ``alone`` is ``RankClient.rank`` in every thread,
``grouped`` ``GroupingClient.rank`` in every thread, ``many`` ``RankClient.rank_many`` of 16 requests in two threads.
A shared call saves what a call costs: targets are that neither takes more processor time of both than asking alone.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.harness import Target, finish, parser
from benchmarks.serving_processes import READY, Server, free_port, start
from benchmarks.serving_requests import BLOCK, bodies
from benchmarks.serving_world import make_world
from service.api import RankRequest, RankResponse
from service.client import RankClient
from service.client_grouping import GroupingClient
from service.settings import Settings

WARM, MANY = 0.5, 16
"""Seconds before each timing; requests of one ``rank_many``."""


def main() -> int:
    """Measure and print."""
    options = _options()
    with TemporaryDirectory() as scratch:
        store = options.store
        if store is None:
            store = make_world(Path(scratch) / "world", BLOCK, with_heavy=True, with_plain=False).store
        figures: dict[str, Any] = {}
        with _serving(store, Path(scratch)) as server:
            for stage in ("light", "full"):
                for candidates in options.candidates:
                    figures |= _case(server, stage, candidates, options)
    targets = [Target(name, value, at_most=1.0) for name, value in figures.items() if name.endswith("/ alone, CPU")]
    return finish(options, figures, targets)


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--store", type=Path, help="of an earlier benchmarks.serving_world; made unless given")
    options.add_argument("--candidates", type=int, nargs="+", default=[100, 1_000])
    options.add_argument("--threads", type=int, default=8, help="that ask")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.5, help="of each way in each round")
    return options.parse_args()


@contextmanager
def _serving(store: Path, work: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "adsieve", "serve", "--store", str(store), "--port", str(port)]
    log, env = work / "serve.log", {"ADSIEVE_MAX_WAITING": str(Settings.model_fields["max_in_flight"].default)}
    # Two batches at once are more than the line of an overloaded service.
    server = start("adsieve", [*command, "--local", str(work / "local")], port=port, log=log, env=env, ready=READY)
    try:
        server.wait(msgspec.json.encode(bodies(1, num_ads=BLOCK, candidates=10, stage="light")[0]))
        yield server
    finally:
        server.stop()


def _case(server: Server, stage: str, candidates: int, options: argparse.Namespace) -> dict[str, float]:
    raw = bodies(32, num_ads=BLOCK, candidates=candidates, stage=stage)
    requests = [msgspec.convert(body | {"limit": 100}, RankRequest) for body in raw]
    name, rates = f"{stage}, {candidates:,} candidates", dict[str, list[_Rate]]()
    with (
        RankClient(f"http://127.0.0.1:{server.port}", timeout_s=30.0, connections=options.threads) as client,
        GroupingClient(client, group_size=options.threads) as grouping,
    ):

        def many(first: int) -> int:
            outcomes = client.rank_many([requests[(first + other) % 32] for other in range(MANY)])
            for outcome in outcomes:
                if not isinstance(outcome, RankResponse):
                    raise outcome
            return len(outcomes)

        ways: dict[str, tuple[Callable[[int], int], int]] = {
            "alone": (lambda number: bool(client.rank(requests[number % 32])), options.threads),
            "grouped": (lambda number: bool(grouping.rank(requests[number % 32])), options.threads),
            "many": (many, 2),
        }
        for _ in range(options.rounds):
            for way, (ask, threads) in ways.items():
                _rate(ask, threads, WARM, server)
                rates.setdefault(way, []).append(_rate(ask, threads, options.seconds, server))
    figures = {}
    for way, measured in rates.items():
        figures[f"{name}: {way}, requests/s"] = round(median(rate.requests for rate in measured), 1)
        figures[f"{name}: {way}, server CPU ms a request"] = round(median(rate.server_ms for rate in measured), 3)
        figures[f"{name}: {way}, client CPU ms a request"] = round(median(rate.client_ms for rate in measured), 3)
        if way != "alone":
            pairs = list(zip(measured, rates["alone"], strict=True))
            figures[f"{name}: {way} / alone, requests/s"] = round(median(a.requests / b.requests for a, b in pairs), 2)
            figures[f"{name}: {way} / alone, CPU"] = round(median(a.cpu_ms / b.cpu_ms for a, b in pairs), 2)
    return figures


@dataclass(frozen=True)
class _Rate:
    """Answers a second, and processor time of each; a busy machine touches that less."""

    requests: float
    server_ms: float
    client_ms: float

    @property
    def cpu_ms(self) -> float:
        """Of both."""
        return self.server_ms + self.client_ms


def _rate(ask: Callable[[int], int], num_threads: int, seconds: float, server: Server) -> _Rate:
    """So many threads that ask for some seconds."""
    server_s, client_s = server.cpu_s(), time.process_time()
    numbers, began = count(), time.perf_counter()

    def work(_: int) -> int:
        answered = 0
        while time.perf_counter() - began < seconds:
            answered += ask(next(numbers))
        return answered

    with ThreadPoolExecutor(num_threads) as threads:
        answered = sum(threads.map(work, range(num_threads)))
    return _Rate(
        requests=answered / (time.perf_counter() - began),
        server_ms=1000 * (server.cpu_s() - server_s) / answered,
        client_ms=1000 * (time.process_time() - client_s) / answered,
    )


if __name__ == "__main__":
    sys.exit(main())
