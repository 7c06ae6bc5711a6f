"""How near the heavy ranker comes to the true probabilities of a simulated log.

Simulates a log, trains on the ads shown on all of its days but the last, and judges the predictions for the last day by
the truth, with one layer and with two. --backbones adds every other backbone and their ensemble, under the same budget
of examples, which takes about five times as long.

The target is on the expected log loss, ``-(p log q + (1 - p) log(1 - q))`` under the true probabilities p: the log loss
of the drawn labels stands beside it, and differs by nothing but the luck of the draw.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from adlogs.fit import fit_log, named_schema
from adlogs.presets import PRESETS as WORLDS
from adlogs.simulate import simulate
from benchmarks.harness import Target, finish, parser
from benchmarks.simulated_setup import judged_schema, tried
from benchmarks.truth_quality import Calibration, calibrations, expected_excess, realised_excess, worst
from contracts.errors import LogError
from contracts.metrics import auc
from contracts.probability import sigmoid
from contracts.records import LogPaths, open_dataset
from contracts.schema import FeatureSchema
from distill.slices import SliceColumn, slice_columns
from heavy_ranker.config import BackboneName, HeavyConfig
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict, true_probabilities
from heavy_ranker.flops import count_flops
from heavy_ranker.run import Run, with_groups
from heavy_ranker.train import train_examples
from modeling.examples import Examples
from modeling.run import begin_run

Backbones = tuple[BackboneName, ...]

MOST_EXCESS, MOST_MISCALIBRATION = 0.02, 0.03
LAYERS = (1, 2)
OURS: Backbones = ("hyformer",)
OTHERS: tuple[Backbones, ...] = (
    ("din_dcn",), ("masknet",), ("rankmixer",), ("hyformer", "din_dcn", "masknet", "rankmixer"),
)  # fmt: skip
SLICED_BY = (
    "surface", "device", "hour", "country", "language", "age_band", "income_band", "user_ctr", "activity",
    "category", "format", "ad_language", "advertiser_size", "price", "creative_score", "landing_score", "ad_age_days",
    "past_impressions", "past_ctr", "past_cvr", "advertiser_ctr", "user_advertiser_clicks",
)  # fmt: skip
_DAY = 86_400_000_000


@dataclass(frozen=True)
class SimulatedLog:
    """The log, its schema, what was shown before the last day and on it, and the truth of the latter, [N, K]."""

    schema: FeatureSchema
    training: Examples
    test: Examples
    truth: np.ndarray
    columns: dict[str, SliceColumn]


@dataclass(frozen=True)
class Judged:
    """One model: by task the figures of a row of the table, and its calibration on every slice that is large enough."""

    name: str
    figures: dict[str, Any]
    slices: list[Calibration]


def main() -> int:
    """One run of everything that was asked for."""
    options = _options()
    with TemporaryDirectory(prefix="adsieve-heavy-simulated-") as directory:
        log = read_log(options.world, Path(directory))
        judged = []
        for members in (OURS, *(OTHERS if options.backbones else ())):
            for layers in LAYERS:
                judged.append(train_and_judge(log, tried(members, num_layers=layers), Path(directory)))
                print(f"{judged[-1].name}: {judged[-1].figures}", file=sys.stderr, flush=True)
    figures: dict[str, Any] = {"shown ads trained on": len(log.training), "shown ads judged": len(log.test)}
    for found in judged:
        figures |= {f"{found.name}: {name}": value for name, value in found.figures.items()}
    if not options.json:
        _print_table(judged)
    return finish(options, figures, [target for found in judged for target in targets(found)])


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--backbones", action="store_true", help="also train the other backbones and their ensemble")
    options.add_argument("--world", choices=sorted(WORLDS), default="large", help="preset of the simulation")
    return options.parse_args()


def read_log(world: str, directory: Path) -> SimulatedLog:
    """Simulate, fit the schema on all days but the last, encode, and look up the truth of the last."""
    simulate(directory / "log", world)
    paths = LogPaths.under(directory / "log")
    until = _last_midnight(paths)
    schema = fit_log(judged_schema(named_schema("simulated_heavy")), paths, until=until)
    training = read_impressions(schema, paths, directory / "examples", end=until)
    test = read_impressions(schema, paths, directory / "examples", start=until)
    truth = true_probabilities(paths, test, schema.tasks)
    if truth is None:
        raise LogError(f"{directory / 'log'}: expected truth/ in a simulated log, got none")
    columns = {name: column for name, column in slice_columns(test, SLICED_BY).items() if name != "day"}
    return SimulatedLog(schema, training, test, truth, columns)


def _last_midnight(paths: LogPaths) -> datetime:
    times = open_dataset(paths.requests).to_table(["event_time"])["event_time"]
    latest = int(np.asarray(times.cast("int64")).max())
    return datetime.fromtimestamp(latest // _DAY * _DAY / 1e6, tz=UTC)


def train_and_judge(log: SimulatedLog, config: HeavyConfig, directory: Path) -> Judged:
    """Train on what was shown before the last day; judge on the last."""
    name = model_name(config)
    out = directory / name
    config = with_groups(log.schema, config)
    begin_run(out, log.schema, config)
    start = time.perf_counter()
    run = train_examples(log.schema, log.training, out, config)
    seconds = time.perf_counter() - start
    predicted = sigmoid(predict(run.model, log.test))
    slices = [
        slice_
        for at, task in enumerate(log.schema.tasks)
        for slice_ in calibrations(task, log.truth[:, at], predicted[:, at], log.columns)
    ]
    return Judged(name, _about(run, log.schema, seconds) | dict(_quality(log, predicted, slices)), slices)


def model_name(config: HeavyConfig) -> str:
    """Of a row of the table.

    Example:
        >>> model_name(tried(("din_dcn",), num_layers=2))
        'din_dcn, 2 layers'
    """
    members, layers = config.model.backbones, config.model.num_layers
    return f"{'ensemble' if len(members) > 1 else members[0]}, {layers} layer{'s' if layers > 1 else ''}"


def _about(run: Run, schema: FeatureSchema, seconds: float) -> dict[str, Any]:
    flops = count_flops(run.model.ranker, schema)
    return {
        "MFLOPs an ad, nothing shared": flops.alone / 1e6,
        "MFLOPs a request": flops.request / 1e6,
        "MFLOPs each of its ads": flops.ad / 1e6,
        "dense parameters": run.summary.parameters["dense"],
        "seconds of training": round(seconds, 1),
    }


def _quality(log: SimulatedLog, predicted: np.ndarray, slices: list[Calibration]) -> Iterator[tuple[str, Any]]:
    labels = np.asarray(log.test.labels)
    for at, task in enumerate(log.schema.tasks):
        truth, chance, known = log.truth[:, at], predicted[:, at], ~np.isnan(labels[:, at])
        yield f"{task}, expected log loss above the truth's", expected_excess(truth, chance)
        yield f"{task}, log loss above the truth's", realised_excess(labels[:, at], truth, chance)
        yield f"{task}, AUC", float(auc(labels[known, at], chance[known]))
        yield f"{task}, AUC of the truth", float(auc(labels[known, at], truth[known]))
        yield f"{task}, calibration", float(chance.sum() / truth.sum())
        of_task = [slice_ for slice_ in slices if slice_.task == task]
        if of_task:
            farthest = worst(of_task)
            yield f"{task}, slices judged", len(of_task)
            yield (
                f"{task}, slices off by more than {MOST_MISCALIBRATION}",
                sum(slice_.error > MOST_MISCALIBRATION for slice_ in of_task),
            )
            yield f"{task}, calibration of the worst slice", farthest.ratio
            yield f"{task}, worst slice", f"{farthest.column} {farthest.value}"


def targets(found: Judged) -> Iterator[Target]:
    """Log loss of each task, and the slice whose calibration is farthest off; of our own backbone only."""
    if not found.name.startswith(OURS[0]):
        return
    for name, value in found.figures.items():
        if name.endswith("expected log loss above the truth's"):
            yield Target(f"{found.name}: {name}", value, at_most=MOST_EXCESS)
    if found.slices:
        yield Target(
            f"{found.name}: calibration error of the worst slice",
            worst(found.slices).error,
            at_most=MOST_MISCALIBRATION,
        )


def _print_table(judged: list[Judged]) -> None:
    names = [name for name in judged[0].figures if "worst slice" not in name or "calibration" in name]
    table = Table("", *(found.name for found in judged), box=None)
    for name in names:
        values = (found.figures.get(name, "") for found in judged)
        table.add_row(name, *(f"{value:.4g}" if isinstance(value, float) else f"{value:,}" for value in values))
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
