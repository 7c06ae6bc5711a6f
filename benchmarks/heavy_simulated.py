"""How near the heavy ranker comes to the true probabilities of a simulated log.

Trains on nine requests in ten of all days but the last, and is judged twice by the truth. The targets apply to the
held-out requests of the same days: what is off there is the model's own. Beside them stand requests of the day after,
as a served model meets them. There no target can be asked of a slice: overnight the trend of each category walks by .08
of a logit, which a model trained until midnight cannot know.

The model's last bias is set by labels of its training rows, as far back as what is judged: by all days for the first
set, by the newest impressions for the second.

First our own model, with one layer and all rows. Then a table under one smaller budget: one layer and two, and with
--backbones each other backbone and the ensemble of all. Each row is printed as it is done and kept in --keep, where a
stopped run goes on.

The target is on the expected log loss, ``-(p log q + (1 - p) log(1 - q))`` under the true probabilities p: the log loss
of the drawn labels stands beside it, and differs by nothing but the luck of the draw.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from adlogs.presets import PRESETS as WORLDS
from benchmarks.harness import Target, finish, parser
from benchmarks.simulated_log import Judged, SimulatedLog, read_log, some_requests
from benchmarks.simulated_setup import tried
from benchmarks.truth_quality import Calibration, calibrations, expected_excess, realised_excess, worst
from contracts.artifact import write_json
from contracts.metrics import auc
from contracts.probability import sigmoid
from contracts.schema import FeatureSchema
from heavy_ranker.calibration import calibrate
from heavy_ranker.config import BackboneName
from heavy_ranker.evaluate import predict
from heavy_ranker.flops import count_flops
from heavy_ranker.run import Run, with_groups
from heavy_ranker.train import train_examples
from modeling.run import begin_run

MOST_EXCESS, MOST_MISCALIBRATION = 0.02, 0.03
CALIBRATED_BY = 1_000_000
"""Impressions of all days that the last bias is set by: their conversions have a spread below 1 %."""

Backbones = tuple[BackboneName, ...]
OURS: Backbones = ("hyformer",)
OTHERS: tuple[Backbones, ...] = (
    ("din_dcn",), ("masknet",), ("rankmixer",), ("hyformer", "din_dcn", "masknet", "rankmixer"),
)  # fmt: skip
LAYERS = (1, 2)


@dataclass(frozen=True)
class Tried:
    """A row of the table: a model, how many rows it may train on, None for all, and how often it sees them."""

    backbones: Backbones
    layers: int
    most_rows: int | None
    passes: int = 1

    @property
    def name(self) -> str:
        """Of backbone, depth and budget.

        Example:
            >>> Tried(("din_dcn",), 2, 300_000).name
            'din_dcn, 2 layers, 300,000 rows'
        """
        backbone = "ensemble" if len(self.backbones) > 1 else self.backbones[0]
        rows = "all rows" if self.most_rows is None else f"{self.most_rows:,} rows"
        passes = f", {self.passes} passes" if self.passes > 1 else ""
        return f"{backbone}, {self.layers} layer{'s' if self.layers > 1 else ''}, {rows}{passes}"


class Row(msgspec.Struct, frozen=True):
    """What one model came to: its figures, and its calibration on every held-out slice that is large enough."""

    name: str
    figures: dict[str, Any]
    slices: list[Calibration]


def main() -> int:
    """One run of everything that was asked for."""
    options = _options()
    with TemporaryDirectory(prefix="adsieve-heavy-simulated-") as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        log = read_log(options.world, directory)
        rows = []
        for asked in asked_for(options.backbones, options.rows, options.passes):
            rows.append(row_of(log, asked, directory))
            print(f"{rows[-1].name}: {rows[-1].figures}", file=sys.stderr, flush=True)
    figures: dict[str, Any] = {
        "rows to train on": len(log.training),
        "rows held out": len(log.held_out.examples),
        "rows of the next day": len(log.next_day.examples),
    }
    for found in rows:
        figures |= {f"{found.name}: {name}": value for name, value in found.figures.items()}
    if not options.json:
        _print_table(rows)
    return finish(options, figures, list(targets(rows[0])))


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--backbones", action="store_true", help="also train the other backbones and their ensemble")
    options.add_argument("--rows", type=int, default=100_000, help="rows that each model of the second table trains on")
    options.add_argument("--passes", type=int, default=1, help="of the first model over its rows")
    options.add_argument("--world", choices=sorted(WORLDS), default="large", help="preset of the simulation")
    options.add_argument("--keep", type=Path, help="keep log, runs and figures here, and go on from them")
    return options.parse_args()


def asked_for(backbones: bool, most_rows: int, passes: int = 1) -> list[Tried]:
    """The rows of the table in order: our own with all rows, then everything under one budget."""
    compared = (OURS, *(OTHERS if backbones else ()))
    return [
        Tried(OURS, 1, None, passes),
        *(Tried(members, layers, most_rows) for members in compared for layers in LAYERS),
    ]


def row_of(log: SimulatedLog, asked: Tried, directory: Path) -> Row:
    """Train and judge, or read what an earlier run found."""
    kept = directory / f"{asked.name}.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=Row)
    row = train_and_judge(log, asked, directory / asked.name)
    write_json(kept, msgspec.to_builtins(row))
    return row


def train_and_judge(log: SimulatedLog, asked: Tried, out: Path) -> Row:
    """Train on what the budget allows; judge on the held-out requests and on the next day."""
    training = log.training if asked.most_rows is None else some_requests(log.training, asked.most_rows)
    config = with_groups(log.schema, tried(asked.backbones, num_layers=asked.layers, epochs=asked.passes))
    begin_run(out, log.schema, config)
    start = time.perf_counter()
    run = train_examples(log.schema, training, out, config)
    figures = _about(run, log.schema, time.perf_counter() - start) | {"rows trained on": len(training)}
    calibrate(run.model, some_requests(training, CALIBRATED_BY), enough=CALIBRATED_BY)
    predicted = sigmoid(predict(run.model, log.held_out.examples))
    slices = [
        slice_
        for at, task in enumerate(log.schema.tasks)
        for slice_ in calibrations(task, log.held_out.truth[:, at], predicted[:, at], log.held_out.columns)
    ]
    figures |= dict(_quality(log.schema, log.held_out, predicted))
    figures |= dict(_slice_figures(log.schema, slices))
    calibrate(run.model, training)
    following = sigmoid(predict(run.model, log.next_day.examples))
    figures |= {f"next day: {name}": value for name, value in _quality(log.schema, log.next_day, following)}
    return Row(asked.name, figures, slices)


def _about(run: Run, schema: FeatureSchema, seconds: float) -> dict[str, Any]:
    flops = count_flops(run.model.ranker, schema)
    return {
        "MFLOPs an ad, nothing shared": flops.alone / 1e6,
        "MFLOPs a request": flops.request / 1e6,
        "MFLOPs each of its ads": flops.ad / 1e6,
        "dense parameters": run.summary.parameters["dense"],
        "seconds of training": round(seconds, 1),
    }


def _quality(schema: FeatureSchema, judged: Judged, predicted: np.ndarray) -> Iterator[tuple[str, Any]]:
    labels = np.asarray(judged.examples.labels)
    for at, task in enumerate(schema.tasks):
        truth, chance, known = judged.truth[:, at], predicted[:, at], ~np.isnan(labels[:, at])
        yield f"{task}, expected log loss above the truth's", expected_excess(truth, chance)
        yield f"{task}, log loss above the truth's", realised_excess(labels[:, at], truth, chance)
        yield f"{task}, AUC", float(auc(labels[known, at], chance[known]))
        yield f"{task}, AUC of the truth", float(auc(labels[known, at], truth[known]))
        yield f"{task}, calibration", float(chance.sum() / truth.sum())


def _slice_figures(schema: FeatureSchema, slices: list[Calibration]) -> Iterator[tuple[str, Any]]:
    for task in schema.tasks:
        of_task = [slice_ for slice_ in slices if slice_.task == task]
        if of_task:
            farthest, off = worst(of_task), sum(slice_.error > MOST_MISCALIBRATION for slice_ in of_task)
            yield f"{task}, slices judged", len(of_task)
            yield f"{task}, slices off by more than {MOST_MISCALIBRATION}", off
            yield f"{task}, calibration of the worst slice", farthest.ratio
            yield f"{task}, worst slice", f"{farthest.column} {farthest.value}"


def targets(found: Row) -> Iterator[Target]:
    """Log loss of each task, and the slice whose calibration is farthest off, of the held-out requests."""
    for name, value in found.figures.items():
        if name.endswith("expected log loss above the truth's") and not name.startswith("next day"):
            yield Target(f"{found.name}: {name}", value, at_most=MOST_EXCESS)
    if found.slices:
        error = worst(found.slices).error
        yield Target(f"{found.name}: calibration error of the worst slice", error, at_most=MOST_MISCALIBRATION)


def _print_table(rows: list[Row]) -> None:
    names = [name for name, value in rows[0].figures.items() if not isinstance(value, str)]
    table = Table("", *(found.name for found in rows), box=None)
    for name in names:
        values = (found.figures.get(name, "") for found in rows)
        table.add_row(name, *(f"{value:.4g}" if isinstance(value, float) else f"{value:,}" for value in values))
    Console(width=260).print(table)


if __name__ == "__main__":
    sys.exit(main())
