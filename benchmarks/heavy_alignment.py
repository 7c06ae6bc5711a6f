"""What the defaults that a port brings along cost: the heavy ranker trained with and without each of them.

Four switches, each alone and all together, against the project's own choice: bags pooled by sum instead of mean; tables
that start uniform within the inverse root of their number of rows instead of their width; a loss summed over the batch
instead of its mean; and Adagrad at the tables' rate for dense layers too instead of an optimiser for each. All runs of
a seed see the same batches. Trains on all days but the last of a simulated log, or on the real log's training rows.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.harness import finish, parser
from contracts.records import LogPaths
from contracts.schema import FeatureSchema, load_schema
from heavy_ranker.config import HeavyConfig
from heavy_ranker.evaluate import evaluate_run
from heavy_ranker.presets import small
from heavy_ranker.train import train_heavy

Variant = Callable[[FeatureSchema, HeavyConfig], tuple[FeatureSchema, HeavyConfig]]


def sum_pooling(schema: FeatureSchema, config: HeavyConfig) -> tuple[FeatureSchema, HeavyConfig]:
    """Bags of several values are summed."""
    features = {
        name: msgspec.structs.replace(feature, pooling="sum") if feature.kind == "multi_categorical" else feature
        for name, feature in schema.features.items()
    }
    return msgspec.structs.replace(schema, features=features), config


def table_init(schema: FeatureSchema, config: HeavyConfig) -> tuple[FeatureSchema, HeavyConfig]:
    """TorchRec's own first weights."""
    return schema, msgspec.structs.replace(config, table_init="rows")


def summed_loss(schema: FeatureSchema, config: HeavyConfig) -> tuple[FeatureSchema, HeavyConfig]:
    """The gradient grows with the batch."""
    return schema, msgspec.structs.replace(config, loss_reduction="sum")


def one_optimiser(schema: FeatureSchema, config: HeavyConfig) -> tuple[FeatureSchema, HeavyConfig]:
    """Adagrad with one rate for tables and dense layers."""
    loop = msgspec.structs.replace(
        config.loop, dense_optimizer="adagrad", learning_rate=config.table_learning_rate, weight_decay=0.0
    )
    return schema, msgspec.structs.replace(config, loop=loop)


SWITCHES: dict[str, Variant] = {
    "sum pooling": sum_pooling,
    "tables start by their rows": table_init,
    "summed loss": summed_loss,
    "one optimiser": one_optimiser,
}


def main() -> int:
    """Train every variant with every seed on one log and print the table."""
    options = _options()
    with TemporaryDirectory(prefix="adsieve-alignment-") as directory:
        log, schema, until = _log(Path(directory), options.kuairand)
        found = {
            name: [_metrics(variant, log, schema, until, Path(directory), seed) for seed in range(options.seeds)]
            for name, variant in variants().items()
        }
    figures = {}
    for task in found["aligned"][0]:
        for name, runs in found.items():
            for metric in ("log_loss", "auc"):
                figures[f"{task} {metric}, {name}"] = _summary([run[task][metric] for run in runs])
    return finish(options, figures, [])


def variants() -> dict[str, Variant]:
    """``aligned``, every switch alone, and all of them."""

    def everything(schema: FeatureSchema, config: HeavyConfig) -> tuple[FeatureSchema, HeavyConfig]:
        for switch in SWITCHES.values():
            schema, config = switch(schema, config)
        return schema, config

    return {"aligned": lambda schema, config: (schema, config), **SWITCHES, "all four": everything}


def _options() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("--kuairand", type=Path, help="folder of the KuaiRand-Pure log, instead of a simulated one")
    arguments.add_argument("--seeds", type=int, default=2, help="runs of each variant")
    return arguments.parse_args()


def _log(directory: Path, kuairand: Path | None) -> tuple[LogPaths, FeatureSchema, datetime]:
    """The log, the schema fitted before its test, and when the test begins."""
    log, schema = directory / "log", directory / "schema.yaml"
    if kuairand is None:
        _adsieve("simulate", str(log), "--preset", "demo")
        until = _last_day(log)
    else:
        _adsieve("convert", "kuairand", str(kuairand), "--out", str(log))
        until = json.loads((log / "split.json").read_text())["train_until"]
    name = "simulated_heavy" if kuairand is None else "kuairand_heavy"
    _adsieve("schema", "fit", name, "--logs", str(log), "--out", str(schema), "--until", until)
    return LogPaths.under(log), load_schema(schema, fitted=True), datetime.fromisoformat(until)


def _last_day(log: Path) -> str:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    last = pc.max(ds.dataset(log / "requests").to_table(columns=["event_time"])["event_time"]).as_py()
    return last.replace(hour=0, minute=0, second=0, microsecond=0).isoformat()


def _adsieve(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "adsieve", *command], check=True, stdout=sys.stderr)


def _metrics(
    variant: Variant, log: LogPaths, schema: FeatureSchema, until: datetime, directory: Path, seed: int
) -> dict[str, Any]:
    own, config = variant(schema, msgspec.structs.replace(small(), seed=seed))
    with TemporaryDirectory(dir=directory) as run_directory:
        run = train_heavy(own, log, Path(run_directory) / "run", config, end=until)
        return evaluate_run(run, log, start=until)["slices"]["all"]["model"]


def _summary(values: list[float]) -> str:
    spread = f" +- {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{spread}"


if __name__ == "__main__":
    sys.exit(main())
