"""Distilling a ``shopping()`` student, beside a plain PyTorch loop over the same pairs.

Pairs: 5,000 ads, popularity by Zipf 1.1, 100 candidates a request, 128 requests a batch (benchmarks/distill_log.py).
Plain side: benchmarks/plain_distill.py, which computes both towers for every pair. Speeds are of interleaved blocks of
one run; figures are medians. Then both sides learn until they are equally good: the plain one for a fixed number of
pairs, ours until its KL on requests that neither has seen is as low. ``--directory`` keeps the log for another run.
"""

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.distill_log import CANDIDATES, distill_log
from benchmarks.harness import Target, finish, parser
from benchmarks.our_distill import OurDistilling
from benchmarks.our_training import Parts, matrix_rate, seconds
from benchmarks.plain_distill import PlainDistilling, pair_loader
from contracts.schema import FeatureSchema
from distill.batches import DayBatches
from distill.loss import bernoulli_kl
from distill.presets import shopping
from distill.train import forward
from modeling.batches import Batch, gather
from modeling.compile import has_compiler
from modeling.examples import Examples
from modeling.memory import keep_freed_memory
from towers.embedding import pair_logits

REQUESTS, UNSEEN = 6_400, 320
BATCH = 128
SWEEP = (8, 32, 128, 512)
"""Requests a batch."""
PLAIN_SWEEP = (256, 1_024, 4_096)
"""Pairs a batch."""
BLOCKS = 3
OUR_PAIRS, PLAIN_PAIRS = 128_000, 4_096
"""Of one block."""
PARTS = 20
"""Steps that are timed part by part."""
LEARNED = 131_072
"""Pairs that the plain side learns."""
PLAIN_BATCH, PLAIN_RATES = 1_024, (1e-3, 4e-3)
OUR_BATCHES = (32, 128)
"""Requests a batch with which ours learns: about what the preset has, and what its speed is measured with."""
LOOK = 4
"""Steps of ours between two looks at its KL, which are not timed."""
LONGEST = 1_200
"""Steps after which ours gives up."""


def main() -> int:
    """Speed, sweep, stages; then the time to equal KL."""
    arguments = parser(__doc__)
    arguments.add_argument("--directory", type=Path, help="keep the log here, or use the one that is kept")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", choices=("speed", "quality"), help="one part alone")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    with TemporaryDirectory(prefix="adsieve-distill-training-") as temporary:
        directory = options.directory or Path(temporary)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "compiled")
        schema, examples = distill_log(directory, requests=REQUESTS + UNSEEN)
        unseen = np.asarray(examples.request_row) >= REQUESTS
        sides = _Sides(schema, examples.select(np.flatnonzero(~unseen)), examples.select(np.flatnonzero(unseen)))
        figures: dict[str, Any] = {"threads": options.threads, "schedule": _schedule()}
        targets: list[Target] = []
        for name, part in (("speed", sides.speed), ("quality", sides.quality)):
            if options.only in (None, name):
                found, wanted = part()
                figures |= found
                targets += wanted
    return finish(options, figures, targets)


def _schedule() -> str:
    return (
        f"{BLOCKS} interleaved blocks of {OUR_PAIRS} pairs (plain: {PLAIN_PAIRS}) after one step each, stages of "
        f"{PARTS} steps of {BATCH} requests"
    )


class _Sides:
    """Both sides and their pairs."""

    def __init__(self, schema: FeatureSchema, training: Examples, unseen: Examples) -> None:
        self._schema, self._training = schema, training
        self._unseen = gather(unseen, np.arange(len(unseen)))
        self._prior = torch.from_numpy(np.asarray(training.teacher).mean(0))
        self._config = shopping()

    def speed(self) -> tuple[dict[str, Any], list[Target]]:
        """Pairs a second of every variant, stages, and the matrix rate that they could have."""
        variants = {
            "fp32 eager": self._ours(precision="fp32"),
            "bf16 eager": self._ours(precision="bf16"),
        }
        if has_compiler():
            variants["bf16 compiled"] = self._ours(precision="bf16", compile=True)
        batch = next(self._batches(BATCH))
        first = {name: seconds(lambda: ours.step(batch)) for name, ours in variants.items()}  # noqa: B023
        rates = self._rates(variants)
        of_ours = {name: rates[_name(name, BATCH)] for name in variants}
        fastest = max(of_ours, key=of_ours.__getitem__)
        plain = max(rate for name, rate in rates.items() if name.startswith("plain"))
        sweep = self._sweep(fastest, variants[fastest])
        stages = self._stages(variants[fastest])
        figures = {
            "distinct ads of a batch of 128 requests": len(batch.ads),
            "MFLOPs a pair, forward and backward": variants["fp32 eager"].flops(batch) / len(batch) / 1e6,
            **{f"{name}, pairs/s": rate for name, rate in rates.items()},
            **{f"{name}, pairs/s": rate for name, rate in sweep.items()},
            **{f"first step, {name}, seconds": took for name, took in first.items()},
            **stages,
        }
        target = Target(f"pairs/s, ours ({fastest}) to plain at its best", of_ours[fastest] / plain, at_least=15)
        return figures, [target]

    def quality(self) -> tuple[dict[str, Any], list[Target]]:
        """Seconds until ours is as good as the plain side after ``LEARNED`` pairs, at the better of two rates."""
        plain = {rate: self._plain_learns(rate) for rate in PLAIN_RATES}
        rate = min(plain, key=lambda rate: plain[rate][0])
        goal, took = plain[rate]
        ours = {requests: self._ours_learns(goal, requests) for requests in OUR_BATCHES}
        figures = {
            **{f"plain, rate {each}: KL after {LEARNED} pairs": found[0] for each, found in plain.items()},
            "plain: seconds": took,
        }
        for requests, (seconds_taken, steps, reached) in ours.items():
            name = f"ours, {requests} requests a batch"
            figures |= {f"{name}: KL": reached, f"{name}: seconds": seconds_taken}
            figures[f"{name}: pairs"] = steps * requests * CANDIDATES
        best = min((found[0] for found in ours.values() if not math.isnan(found[0])), default=math.nan)
        return figures | {"seconds to equal KL, plain to ours, each at its best": took / best}, []

    def _ours(self, *, precision: Any, compile: bool = False) -> OurDistilling:
        return OurDistilling(self._schema, self._config, self._prior, precision=precision, compile=compile)

    def _batches(self, requests: int) -> Iterator[Batch]:
        source = DayBatches(self._training, pairs_per_batch=requests * CANDIDATES, seed=0)
        for epoch in itertools.count():
            yield from source.epoch(epoch)

    def _plain_batches(self, pairs: int) -> Iterator[Any]:
        loader = pair_loader(self._training, pairs)
        return itertools.chain.from_iterable(itertools.repeat(loader))

    def _rates(self, variants: dict[str, OurDistilling]) -> dict[str, float]:
        runs: dict[str, tuple[Any, Iterator[Any], int]] = {}
        for pairs in PLAIN_SWEEP:
            plain = PlainDistilling(self._schema, self._config.towers, self._prior, PLAIN_RATES[0])
            runs[f"plain fp32 eager, {pairs} pairs a batch"] = plain, self._plain_batches(pairs), PLAIN_PAIRS
        for name, ours in variants.items():
            runs[_name(name, BATCH)] = ours, self._batches(BATCH), OUR_PAIRS
        return _interleaved(runs)

    def _sweep(self, name: str, ours: OurDistilling) -> dict[str, float]:
        sizes = [requests for requests in SWEEP if requests != BATCH]
        return _interleaved({_name(name, size): (ours, self._batches(size), OUR_PAIRS) for size in sizes})

    def _stages(self, ours: OurDistilling) -> dict[str, float]:
        """Milliseconds of each part of a step, and the towers' rate over that of a square matrix product."""
        batches, parts, data, rates, dense = self._batches(BATCH), [], [], [], []
        for _ in range(PARTS):
            rates.append(matrix_rate(torch.bfloat16))
            data.append(seconds(lambda: self._keep(next(batches))))
            parts.append(ours.timed_step(self._batch))
            dense.append(ours.flops(self._batch) / parts[-1].dense)
        found = {"data": median(data)} | {name: median(getattr(part, name) for part in parts) for name in Parts._fields}
        figures = {f"stage of a step, {name.replace('_', ' ')}, ms": 1e3 * value for name, value in found.items()}
        limit = median(rates)
        figures |= {"BF16 matrix rate, GFLOP/s": limit / 1e9, "towers, GFLOP/s": median(dense) / 1e9}
        return figures | {"share of the matrix limit": median(dense) / limit}

    def _keep(self, batch: Batch) -> None:
        self._batch = batch

    def _plain_learns(self, rate: float) -> tuple[float, float]:
        """KL and seconds."""
        plain = PlainDistilling(self._schema, self._config.towers, self._prior, rate)
        batches = self._plain_batches(PLAIN_BATCH)
        took = seconds(lambda: _steps(plain, batches, LEARNED // PLAIN_BATCH))
        return self._kl(lambda batch: _grouped(plain, batch)), took

    def _ours_learns(self, goal: float, requests: int) -> tuple[float, int, float]:
        """Seconds, steps and KL; NaN seconds where the goal is not reached."""
        ours, batches, took = self._ours(precision="bf16"), self._batches(requests), 0.0
        for steps in range(LOOK, LONGEST, LOOK):
            took += seconds(lambda: _steps(ours, batches, LOOK))
            reached = self._kl(lambda batch: forward(ours.model, batch))
            if reached <= goal:
                return took, steps, reached
        return math.nan, LONGEST, reached

    @torch.no_grad()
    def _kl(self, logits: Callable[[Batch], Tensor]) -> float:
        """On unseen requests, summed over heads."""
        return float(bernoulli_kl(logits(self._unseen), self._unseen.teacher).mean(0).sum())


def _name(variant: str, requests: int) -> str:
    return f"ours {variant}, {requests} requests a batch"


def _interleaved(runs: dict[str, tuple[Any, Iterator[Any], int]]) -> dict[str, float]:
    """Pairs a second: of each run a model, its endless batches and the pairs of a block."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for training, batches, _ in runs.values():
        training.step(next(batches))
    for _ in range(BLOCKS):
        for name, (training, batches, pairs) in runs.items():
            times[name].append(_block_seconds(training, batches, pairs))
    return {name: 1 / median(found) for name, found in times.items()}


def _block_seconds(training: Any, batches: Iterator[Any], pairs: int) -> float:
    """Seconds a pair, of about as many pairs."""
    done = 0

    def block() -> None:
        nonlocal done
        while done < pairs:
            batch = next(batches)
            training.step(batch)
            done += len(batch.teacher)

    return seconds(block) / done


def _steps(training: Any, batches: Iterator[Any], steps: int) -> None:
    for _ in range(steps):
        training.step(next(batches))


def _grouped(plain: PlainDistilling, batch: Batch) -> Tensor:
    """The plain model's logits, with each tower computed once a row: the same, and not part of its time."""
    model = plain.model
    query = model.query_tower(model.tables.flat("query", *batch.query))
    ads = model.pin_tower(model.tables.flat("ad", *batch.ad))
    return pair_logits(query, ads, batch.request_index, batch.ad_index)


if __name__ == "__main__":
    sys.exit(main())
