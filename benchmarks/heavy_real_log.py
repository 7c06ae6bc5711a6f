"""Quality of the heavy ranker on the real log's fixed split, against gradient-boosted trees on the same features.

Converts the log, fits the schema on what comes before its validation rows, trains the preset on all training rows for
several seeds, and judges it on the test rows. Trees are chosen on the validation rows and trained on all training rows.
Differences are of mean AUCs over the seeds, on the same resamples of the test rows. --backbones trains each backbone
with one layer and with two, one seed each, which takes about ten times as long.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from adlogs.fit import fit_log, named_schema
from adlogs.kuairand import convert_kuairand
from benchmarks import trees
from benchmarks.bootstrap import Difference, paired_difference, resampled_aucs
from benchmarks.flat_features import flatten
from benchmarks.harness import Target, finish, parser
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from heavy_ranker.config import HeavyConfig
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict, task_metrics
from heavy_ranker.presets import PRESETS
from heavy_ranker.run import Run
from heavy_ranker.train import train_heavy
from modeling.examples import Examples

OURS = "heavy ranker"
AUC_FLOORS = {"click": 0.747, "conv_engage": 0.774}
DIFFERENCE_FLOORS = {"click": -0.002, "conv_engage": 0.0}
MOST_SECONDS = 300
DRAWS = 1_000
BACKBONES = {
    "hyformer": ("hyformer",),
    "din_dcn": ("din_dcn",),
    "masknet": ("masknet",),
    "rankmixer": ("rankmixer",),
    "ensemble": ("hyformer", "din_dcn", "masknet", "rankmixer"),
}


@dataclass(frozen=True)
class RealLog:
    """The converted log, its schema, and its encoded winners by part; ``training`` includes the validation rows."""

    paths: LogPaths
    schema: FeatureSchema
    training: Examples
    test: Examples
    is_validation: np.ndarray
    until: datetime

    @property
    def labels(self) -> np.ndarray:
        """Of the test rows, [N, K]."""
        return np.asarray(self.test.labels)


def main() -> int:
    """One run of everything that was asked for."""
    options = _options()
    with TemporaryDirectory(prefix="adsieve-heavy-real-") as directory:
        out = Path(directory)
        log = read_log(options.path, out)
        config = PRESETS[options.preset]()
        ours, figures = train_ours(log, config, out, options.seeds)
        scores = {OURS: ours}
        slowest = max(figures.values())
        for name, theirs, about in train_trees(log, options.seeds):
            scores[name] = theirs
            figures |= about
        quality, targets = compare(log, scores)
        figures |= quality
        if options.backbones:
            figures |= compare_backbones(log, config, out)
    targets.append(Target("seconds of the slowest run", slowest, at_most=MOST_SECONDS))
    return finish(options, figures, targets)


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("path", type=Path, help="folder of the KuaiRand-Pure log")
    options.add_argument("--preset", choices=sorted(PRESETS), default="medium", help="sizes and training of the ranker")
    options.add_argument("--seeds", type=int, default=3, help="runs of each model")
    options.add_argument("--backbones", action="store_true", help="also train every backbone, one layer and two")
    return options.parse_args()


def read_log(source: Path, directory: Path) -> RealLog:
    """Convert, fit, encode."""
    convert_kuairand(source, directory / "log")
    paths = LogPaths.under(directory / "log")
    split = json.loads((directory / "log" / "split.json").read_text())
    until, validate_from = (datetime.fromisoformat(split[name]) for name in ("train_until", "validate_from"))
    schema = fit_log(named_schema("kuairand_heavy"), paths, until=validate_from)
    training = read_impressions(schema, paths, directory / "examples", end=until)
    test = read_impressions(schema, paths, directory / "examples", start=until)
    times = np.asarray(training.event_time)[training.request_row]
    return RealLog(paths, schema, training, test, times >= validate_from.timestamp() * 1e6, until)


def train_ours(log: RealLog, config: HeavyConfig, out: Path, seeds: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Logits [N, K] of the test rows for each seed, and the seconds of each run."""
    scores, figures = [], {}
    for seed in range(seeds):
        found, seconds, _ = train_once(log, msgspec.structs.replace(config, seed=seed), out / f"run-{seed}")
        scores.append(found)
        figures[f"{OURS}, seed {seed}: seconds of training"] = seconds
    return scores, figures


def train_once(log: RealLog, config: HeavyConfig, out: Path) -> tuple[np.ndarray, float, Run]:
    """Logits [N, K] of the test rows, the seconds of training, and the run."""
    start = time.perf_counter()
    run = train_heavy(log.schema, log.paths, out, config, end=log.until)
    seconds = round(time.perf_counter() - start, 1)
    return predict(run.model, log.test), seconds, run


def train_trees(log: RealLog, seeds: int) -> Iterator[tuple[str, list[np.ndarray], dict[str, Any]]]:
    """Of each library its name, the probabilities [N, K] for each seed, and what was chosen."""
    features, test = flatten(log.schema, log.training), flatten(log.schema, log.test)
    labels, later = np.asarray(log.training.labels), log.is_validation
    for name, learner in trees.LEARNERS.items():
        start = time.perf_counter()
        choices = trees.choose(learner, features.take(~later), labels[~later], features.take(later), labels[later])
        scores = [trees.predict(learner, choices, features, labels, test.values, seed) for seed in range(seeds)]
        about: dict[str, Any] = {f"{name}: seconds of choosing and training": round(time.perf_counter() - start, 1)}
        for task, choice in zip(log.schema.tasks, choices, strict=True):
            about[f"{name}, {task}: chosen on validation"] = str(choice)
        yield name, scores, about


def compare(log: RealLog, scores: dict[str, list[np.ndarray]]) -> tuple[dict[str, Any], list[Target]]:
    """AUCs and paired differences on the test rows, and the targets that they are held to.

    Args:
        scores: For each model, the scores [N, K] of each of its seeds.
    """
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    names = [name for name, seeds in scores.items() for _ in seeds]
    columns = {model: [at for at, name in enumerate(names) if name == model] for model in scores}
    for task, name in enumerate(log.schema.tasks):
        table = np.stack([found[:, task] for seeds in scores.values() for found in seeds], axis=1)
        aucs = resampled_aucs(log.labels[:, task], table, draws=DRAWS)
        for model, own in columns.items():
            of_seeds = aucs[0, own]
            figures[f"{model}, {name}: AUC"] = float(of_seeds.mean())
            figures[f"{model}, {name}: AUC of each seed"] = " ".join(f"{value:.4f}" for value in of_seeds)
            if model != OURS:
                difference = paired_difference(aucs, columns[OURS], own)
                figures[f"{OURS} less {model}, {name}: AUC"] = str(difference)
        theirs = [model for model in columns if model != OURS]
        best = max(theirs, key=lambda model: aucs[0, columns[model]].mean())
        difference = paired_difference(aucs, columns[OURS], columns[best])
        targets += _targets(name, best, float(aucs[0, columns[OURS]].mean()), difference)
    return figures, targets


def _targets(task: str, best: str, ours: float, difference: Difference) -> list[Target]:
    return [
        Target(f"AUC, {task}", ours, at_least=AUC_FLOORS[task]),
        Target(f"AUC less that of {best}, {task}", difference.value, at_least=DIFFERENCE_FLOORS[task]),
    ]


def compare_backbones(log: RealLog, config: HeavyConfig, out: Path) -> dict[str, Any]:
    """Test AUCs, FLOPs and seconds of each backbone with one layer and with two; one seed."""
    figures: dict[str, Any] = {}
    for (name, backbones), layers in product(BACKBONES.items(), (1, 2)):
        model = msgspec.structs.replace(config.model, backbones=backbones, num_layers=layers)
        variant = msgspec.structs.replace(config, model=model)
        scores, seconds, run = train_once(log, variant, out / f"{name}-{layers}")
        row = f"{name}, {layers} layer{'s' if layers > 1 else ''}"
        for task, metrics in task_metrics(log.schema.tasks, scores, log.labels, np.asarray(log.test.weight)).items():
            figures[f"{row}, {task}: AUC"] = metrics["auc"]
        figures[f"{row}: FLOPs alone, of a request, of an ad"] = str(run.summary.flops)
        figures[f"{row}: seconds of training"] = seconds
    return figures


if __name__ == "__main__":
    sys.exit(main())
