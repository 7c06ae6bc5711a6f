"""What the feedback log costs a request of 1,000 candidates, and what its writer's thread does for one.

The store is that of ``benchmarks.serving`` (``standard()`` towers, a heavy ranker of ``iqiyi()`` sizes, 100,000 ads,
histories of 150 events), requests bring bids and end in 100 survivors, all in one thread. Blocks of requests with and
without the log alternate, each request beginning ``PERIOD_S`` after the one before, so that both have the same load.
The first round is not counted.

- ``offer``: handing a request over, in a loop, while nothing is written.
- ``written``: rows and files of a request, by the writer alone; it runs beside requests, and holds the interpreter for
  a part of that time only.
"""

import argparse
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry

from benchmarks.harness import Target, finish, parser
from benchmarks.serving_requests import BLOCK, bodies
from benchmarks.serving_world import make_world
from indexing.store import DirectoryStore
from service.api import RankRequest
from service.deadline import Deadline
from service.feedback import FeedbackLog
from service.feedback_counts import FeedbackCounts
from service.feedback_rows import Served
from service.feedback_writer import FeedbackWriter
from service.ranker import Outcome, rank
from service.releases import Snapshot, load_snapshot
from service.settings import Settings
from service.wire import decode_request

NUM_ADS, NUM_CANDIDATES, SURVIVORS, DISTINCT = BLOCK, 1_000, 100, 32
ROUNDS, REQUESTS, WRITTEN = 7, 100, 300
PERIOD_S = 0.01
MOST_ADDED_US = 100.0


class Bench:
    """One snapshot, and some requests under ever new ids."""

    def __init__(self, store: Path) -> None:
        self.settings = Settings(store=store, engine_threads=1, heavy_engine="onnxruntime_cpu")
        self.snapshot = load_snapshot(DirectoryStore(store), engine_threads=1)
        self.bodies = bodies(DISTINCT, num_ads=NUM_ADS, candidates=NUM_CANDIDATES, stage="full")
        self._number = 0

    def ask(self, stage: str) -> tuple[RankRequest, Outcome]:
        """Decode and rank one more request."""
        self._number += 1
        body = self.bodies[self._number % DISTINCT] | {"request_id": uuid.uuid4().hex, "stage": stage}
        request = decode_request(msgspec.json.encode(body | {"survivors": SURVIVORS}))
        return request, rank(request, self.snapshot, self.settings, Deadline())


def main() -> int:
    """Measure and print the figures beside the target."""
    options = parser(__doc__)
    options.add_argument("--world", type=Path, help="a world of benchmarks.serving_world; made for this run otherwise")
    return run(options.parse_args())


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as directory:
        world = options.world or Path(directory) / "world"
        if options.world is None:
            make_world(world, NUM_ADS, with_heavy=True, with_plain=False)
        bench, log = Bench(world / "store"), Path(directory) / "log"
        figures: dict[str, Any] = {}
        for stage in ("light", "full"):
            figures |= {f"{stage}: {name}": value for name, value in beside_requests(bench, stage, log).items()}
        figures |= alone(bench, log / "alone")
    added = figures["light: added, median us"]
    return finish(
        options, figures, [Target("added to a request of 1,000 candidates, us", added, at_most=MOST_ADDED_US)]
    )


def feedback(directory: Path, snapshot: Snapshot) -> tuple[FeedbackLog, FeedbackWriter, CollectorRegistry]:
    """A log of its own, with the default settings."""
    registry = CollectorRegistry()
    counts = FeedbackCounts(registry)
    writer = FeedbackWriter(
        directory / uuid.uuid4().hex,
        counts,
        releases=lambda: snapshot.releases.values(),
        rows=10**6,
        seconds=60.0,
    )
    writer.prepare()
    return FeedbackLog(writer, counts, share=1.0, max_requests=1_024, max_rows=1_024_000), writer, registry


def beside_requests(bench: Bench, stage: str, directory: Path) -> dict[str, float]:
    """Time of requests with the log and without, by turns."""
    times: dict[bool, list[float]] = {True: [], False: []}
    log, _, registry = feedback(directory, bench.snapshot)
    with log:
        for number in range(ROUNDS):
            for logged in (True, False):
                found = block(bench, stage, log if logged else None)
                times[logged] += found if number else []
    dropped = registry.get_sample_value("adsieve_feedback_requests_total", {"result": "queue_full"}) or 0.0
    with_log, without = np.array(times[True]) * 1e6, np.array(times[False]) * 1e6
    return {
        "with log, median us": median(with_log),
        "without, median us": median(without),
        "added, median us": median(with_log) - median(without),
        "with log, p99 us": float(np.quantile(with_log, 0.99)),
        "without, p99 us": float(np.quantile(without, 0.99)),
        "dropped": dropped,
    }


def block(bench: Bench, stage: str, log: FeedbackLog | None) -> list[float]:
    """Seconds of each of some requests."""
    times, due = [], time.perf_counter()
    for _ in range(REQUESTS):
        due = max(due + PERIOD_S, time.perf_counter())
        time.sleep(max(due - time.perf_counter(), 0))
        start = time.perf_counter()
        request, outcome = bench.ask(stage)
        if log is not None:
            log.offer(request, outcome)
        times.append(time.perf_counter() - start)
    return times


def alone(bench: Bench, directory: Path) -> dict[str, Any]:
    """Handing over while nothing is written, and writing while nothing is asked."""
    log, writer, registry = feedback(directory, bench.snapshot)
    asked = [bench.ask("full") for _ in range(WRITTEN)]
    start = time.perf_counter()
    for request, outcome in asked:
        log.offer(request, outcome)
    offered = time.perf_counter() - start
    served = [
        Served(
            request_id=outcome.response.request_id,
            request=request,
            event_time_us=outcome.event_time_us,
            result=outcome.result,
        )
        for request, outcome in asked
    ]
    start = time.perf_counter()
    for one in served:
        writer.add(one)
    writer.end_file()
    written = time.perf_counter() - start
    rows = registry.get_sample_value("adsieve_feedback_candidates_total") or 0.0
    size = sum(file.stat().st_size for file in directory.rglob("*.parquet"))
    return {
        "offer, us": 1e6 * offered / WRITTEN,
        "written, us a request": 1e6 * written / WRITTEN,
        "written, candidates/s": rows / written,
        "bytes a candidate": size / sum_rows(directory),
    }


def sum_rows(directory: Path) -> int:
    """Candidates in all files."""
    return sum(pq.read_metadata(file).num_rows for file in directory.rglob("candidates/**/*.parquet"))


if __name__ == "__main__":
    raise SystemExit(main())
