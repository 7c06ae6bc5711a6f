"""Training the heavy ranker at the ``iqiyi`` preset's sizes, beside a plain PyTorch loop over the same rows.

Log: the simulated ``demo`` world's winners, eight a request, three histories of up to 50 events
(benchmarks/training_log.py). Plain side: benchmarks/plain_training.py. Every comparison runs both sides in interleaved
blocks of one run; figures are medians. ``--directory`` keeps the log for another run, and what TorchInductor compiled:
without it, the seconds of the first compiled step are those of an empty cache.
"""

import itertools
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from benchmarks.harness import Target, finish, parser
from benchmarks.our_training import OurTraining, Parts, matrix_rate, seconds
from benchmarks.plain_training import PlainTraining, plain_loader
from benchmarks.training_log import training_log
from benchmarks.training_processes import processes
from benchmarks.training_quality import quality
from contracts.schema import FeatureSchema
from heavy_ranker.config import HeavyConfig
from heavy_ranker.flops import count_flops
from heavy_ranker.presets import iqiyi
from modeling.batches import Batch, ShuffledBatches
from modeling.compile import WORTHWHILE_FLOPS, has_compiler
from modeling.examples import Examples
from modeling.memory import keep_freed_memory

BATCH = 1024
SWEEP = (256, 1024, 4096, 16384)
PLAIN_SWEEP = (256, 1024)
PLAIN_LOADED = 8
BLOCKS, LOADER_BLOCKS = 3, 5
OUR_ROWS, PLAIN_ROWS = 12_288, 2_048
"""Rows of one block: about as many seconds on either side."""
LOADED_BATCH = 4096
PARTS = 20
"""Steps that are timed part by part."""


def main() -> int:
    """Loader, step, sweep, shares; then quality and processes."""
    arguments = parser(__doc__)
    arguments.add_argument("--directory", type=Path, help="keep the log here, or use the one that is kept")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", choices=("speed", "quality", "processes"), help="one part alone")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    with TemporaryDirectory(prefix="adsieve-training-") as temporary:
        directory = options.directory or Path(temporary)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "compiled")
        schema, _, examples = training_log(directory)
        figures: dict[str, Any] = {"threads": options.threads, "schedule": _schedule()}
        targets: list[Target] = []
        for name, part in (("speed", speed), ("quality", quality)):
            if options.only in (None, name):
                _add(figures, targets, part(schema, examples))
        if options.only in (None, "processes"):
            _add(figures, targets, processes(directory))
    return finish(options, figures, targets)


def _schedule() -> str:
    return (
        f"{BLOCKS} interleaved blocks of {OUR_ROWS} rows (plain: {PLAIN_ROWS}), batches of {BATCH} unless said, "
        f"after one step each; loader: {LOADER_BLOCKS} blocks of an epoch in batches of {LOADED_BATCH} "
        f"(plain: {PLAIN_LOADED} batches)"
    )


def _add(figures: dict[str, Any], targets: list[Target], found: tuple[dict[str, Any], list[Target]]) -> None:
    figures |= found[0]
    targets += found[1]


def speed(schema: FeatureSchema, examples: Examples) -> tuple[dict[str, Any], list[Target]]:
    """Everything but quality and processes."""
    loader_figures, loader_target = _loaders(examples)
    side = _Sides(schema, examples)
    rates = side.rates()
    ours, plain = rates[_best(rates, "ours")], rates[_best(rates, "plain")]
    shares, dense_share = side.shares(max(SWEEP, key=lambda size: rates[side.name_of(size)]))
    figures = {
        "dense FLOPs of a forward pass": str(side.flops),
        "MFLOPs an example, forward and backward, as shared and cut": side.flops_each / 1e6,
        "distinct requests of a batch": side.distinct,
        **loader_figures,
        **{f"{name}, examples/s": rate for name, rate in rates.items()},
        **side.compile_account(rates),
        **shares,
    }
    targets = [
        Target("examples/s, ours to plain, each at its best", ours / plain, at_least=4),
        loader_target,
        Target("dense part, share of the BF16 matrix rate", dense_share, at_least=0.5),
    ]
    return figures, targets


def _loaders(examples: Examples) -> tuple[dict[str, float], Target]:
    """Rows a second of the batches alone, prefetching thread included."""
    ours = ShuffledBatches(examples, pairs_per_batch=LOADED_BATCH, by="request")
    plain = plain_loader(examples, LOADED_BATCH, seed=0)
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(LOADER_BLOCKS):
        times["ours"].append(seconds(lambda: _drain(ours.epoch(0))) / len(examples))
        few = itertools.islice(plain, PLAIN_LOADED)
        times["plain"].append(seconds(lambda: _drain(few)) / (PLAIN_LOADED * LOADED_BATCH))  # noqa: B023
    rates = {name: 1 / median(found) for name, found in times.items()}
    figures = {f"loader alone, {name}, rows/s": rate for name, rate in rates.items()}
    return figures, Target("loader alone, ours to row-wise", rates["ours"] / rates["plain"], at_least=20)


def _drain(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


class _Sides:
    """Both sides with their endless batches."""

    def __init__(self, schema: FeatureSchema, examples: Examples) -> None:
        self.examples = examples
        self.flops = count_flops(OurTraining(schema, _config("fp32"), compile=False).model.ranker, schema)
        self.plain = PlainTraining(schema, iqiyi().model, iqiyi().loop.learning_rate)
        self.eager = {precision: OurTraining(schema, _config(precision), compile=False) for precision in _PRECISIONS}
        self.compiled = OurTraining(schema, _config("bf16"), compile=True)
        self.fastest = self.compiled if has_compiler() else self.eager["bf16"]
        batch = next(self.batches(BATCH))
        self.compile_seconds = seconds(lambda: self.compiled.step(batch))
        self.flops_each = self.fastest.flops(batch) / len(batch)
        self.distinct = f"{len(batch.query.ids)} of {len(batch)} rows, and {len(batch.ad.ids)} ads"

    def batches(self, size: int) -> Iterator[Batch]:
        source = ShuffledBatches(self.examples, pairs_per_batch=size, by="request")
        for epoch in itertools.count():
            yield from source.epoch(epoch)

    def name_of(self, size: int) -> str:
        """The fastest variant at one batch size."""
        return f"ours bf16 {'compiled' if has_compiler() else 'eager'}, batch {size}"

    def rates(self) -> dict[str, float]:
        """Examples a second of every variant."""
        runs: dict[str, tuple[Any, Any, int, int]] = {}
        for size in PLAIN_SWEEP:
            loader = plain_loader(self.examples, size, seed=0)
            batches = itertools.chain.from_iterable(itertools.repeat(loader))
            runs[f"plain fp32 eager, batch {size}"] = self.plain, batches, size, PLAIN_ROWS
        for precision, training in self.eager.items():
            runs[f"ours {precision} eager, batch {BATCH}"] = training, self.batches(BATCH), BATCH, OUR_ROWS
        for size in SWEEP:
            runs[self.name_of(size)] = self.fastest, self.batches(size), size, OUR_ROWS
        times: dict[str, list[float]] = {name: [] for name in runs}
        for training, batches, _, _ in runs.values():
            training.step(next(batches))
        for _ in range(BLOCKS):
            for name, (training, batches, size, rows) in runs.items():
                steps = max(1, rows // size)
                times[name].append(seconds(lambda: _steps(training, batches, steps)) / (steps * size))  # noqa: B023
        return {name: 1 / median(found) for name, found in times.items()}

    def compile_account(self, rates: dict[str, float]) -> dict[str, Any]:
        """What compiling costs and saves."""
        if not has_compiler():
            return {"compiling": "no C++ compiler: eager"}
        saved = 1 / rates[f"ours bf16 eager, batch {BATCH}"] - 1 / rates[f"ours bf16 compiled, batch {BATCH}"]
        examples = self.compile_seconds / saved if saved > 0 else math.inf
        return {
            "first compiled step, seconds": self.compile_seconds,
            "FLOPs of a run from which compiling pays": examples * self.flops_each,
            "FLOPs from which auto compiles": WORTHWHILE_FLOPS,
            "graphs compiled": float(torch._dynamo.utils.counters["stats"]["unique_graphs"]),
        }

    def shares(self, size: int) -> tuple[dict[str, float], float]:
        """Shares of a step at one batch size, and the dense part's rate over the matrix rate."""
        batches, parts, eager, data, rates = self.batches(size), [], [], [], []
        for _ in range(PARTS):
            rates.append(matrix_rate(torch.bfloat16))
            data.append(seconds(lambda: self._keep(next(batches))))
            parts.append(self.fastest.timed_step(self._batch))
            eager.append(self.eager["bf16"].timed_step(self._batch).dense)
        found = {"data": median(data)} | {name: median(getattr(part, name) for part in parts) for name in Parts._fields}
        total = sum(found.values())
        limit, flops = median(rates), self.fastest.flops(self._batch)
        dense, dense_eager = flops / found["dense"], flops / median(eager)
        names = {name: f"share of a step of {size}, {name.replace('_', ' ')}" for name in found}
        figures = {names[name]: value / total for name, value in found.items()}
        figures |= {"BF16 matrix rate, GFLOP/s": limit / 1e9, "dense part, GFLOP/s": dense / 1e9}
        figures["dense part, eager, share of the BF16 matrix rate"] = dense_eager / limit
        return figures, dense / limit

    def _keep(self, batch: Batch) -> None:
        self._batch = batch


_PRECISIONS = ("fp32", "bf16")


def _config(precision: str) -> HeavyConfig:
    config = iqiyi()
    return msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, precision=precision))


def _steps(training: Any, batches: Iterator[Any], steps: int) -> None:
    for _ in range(steps):
        training.step(next(batches))


def _best(rates: dict[str, float], side: str) -> str:
    return max((name for name in rates if name.startswith(side)), key=rates.__getitem__)


if __name__ == "__main__":
    sys.exit(main())
