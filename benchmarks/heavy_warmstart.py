"""Examples to equal quality: warm starts against a cold one, after a feature came, a table grew, and one more day.

A cold start learns all days but the last in one pass; its loss at the end, on impressions of the last day, is the
quality to reach. Warm starts begin from a model that learned all of these days but the newest: one of a schema without
the feature, one with a table of half the width, and one of the same schema. Each passes over the newest day alone; what
is counted is the examples that it learns until its loss on the last day is not above the cold start's.
"""

import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import Target, finish, parser
from contracts.records import LogPaths, read_table
from contracts.schema import FeatureSchema, load_schema
from heavy_ranker.config import HeavyConfig
from heavy_ranker.data import read_impressions
from heavy_ranker.presets import small
from heavy_ranker.run import build_model, load_run, with_groups
from heavy_ranker.train import fit, train_examples
from heavy_ranker.warmstart import WarmSource, carry, open_source, with_continued_groups
from modeling.examples import Examples
from modeling.log_requests import utc_microseconds
from modeling.run import begin_run

FEATURE, RESIZED = "past_ctr", "advertiser"
VALIDATED = 8_000
LOOKS = 20
"""Validations of a warm start in its day."""


@dataclass(frozen=True)
class Parts:
    """Impressions of one schema: the days before the newest, the newest, and the last, which none learns from."""

    before: Examples
    newest: Examples
    last: Examples
    both: Examples


def main() -> int:
    """Cold starts and warm starts on one log."""
    arguments = parser(__doc__)
    arguments.add_argument("--log", type=Path, help="log of `adsieve simulate`; the demo's by default")
    options = arguments.parse_args()
    with TemporaryDirectory(prefix="adsieve-warmstart-") as directory:
        out = Path(directory)
        log = options.log or out / "log"
        if options.log is None:
            _adsieve("simulate", str(log), "--preset", "demo")
        _adsieve("schema", "fit", "simulated_heavy", "--logs", str(log), "--out", str(out / "heavy.yaml"))
        figures = compare(load_schema(out / "heavy.yaml", fitted=True), LogPaths.under(log), out)
    worst = max(share for name, share in figures.items() if name.endswith("share of the cold start's examples"))
    return finish(options, figures, [Target("largest share of the cold start's examples", worst, at_most=0.5)])


def compare(schema: FeatureSchema, log: LogPaths, out: Path) -> dict[str, Any]:
    """Figures of the cold start and of the three warm ones."""
    config = _one_pass(small())
    parts = divide(schema, log, out)
    cold = _cold(schema, parts, config, out / "cold")
    figures: dict[str, Any] = {"cold start: examples": len(parts.both), "cold start: validation loss": cold}
    sources = {
        "one more day": (schema, parts),
        f"after {FEATURE} came": _variant(without_feature(schema), log, out),
        f"after table {RESIZED} grew": _variant(half_table(schema), log, out),
    }
    for name, (old_schema, old_parts) in sources.items():
        place = out / name.replace(" ", "-")
        source = _source(old_schema, old_parts.before, config, place)
        found = reach(schema, parts, config, source, cold, place / "warm")
        figures |= {f"{name}: {key}": value for key, value in found.items()}
    return figures


def reach(
    schema: FeatureSchema, parts: Parts, config: HeavyConfig, source: WarmSource, goal: float, out: Path
) -> dict[str, Any]:
    """Train warm on the newest day; the examples until ``goal``, and the validation loss before and after."""
    steps = -(-len(parts.newest) // config.batch_size)
    loop = msgspec.structs.replace(config.loop, validate_every=max(1, steps // LOOKS))
    config = with_continued_groups(schema, msgspec.structs.replace(config, loop=loop), source)
    config = with_groups(schema, config)
    model = build_model(schema, config)
    warm = carry(source, schema, config, model)
    history = fit(model, parts.newest, parts.last, config, out, warm=warm).history
    reached = next((look for look in history if look.loss is not None and look.loss <= goal), None)
    examples = float("nan") if reached is None else min(reached.step * config.batch_size, len(parts.newest))
    return {
        "share of weights carried over": warm.report.carried["dense weights"] / warm.report.total["dense weights"],
        "validation loss at the end": history[-1].loss,
        "examples until the cold start's loss": examples,
        "share of the cold start's examples": examples / len(parts.both),
    }


def divide(schema: FeatureSchema, log: LogPaths, out: Path) -> Parts:
    """The impressions of a log by day."""
    examples = read_impressions(schema, log, out / "examples")
    times = np.asarray(examples.event_time)[examples.request_row]
    days = read_table(log.requests, ["event_time"])["event_time"].to_pylist()
    midnight = max(days).replace(hour=0, minute=0, second=0, microsecond=0)
    newest, last = (times >= utc_microseconds(midnight - back) for back in (timedelta(days=1), timedelta(0)))
    validated = np.flatnonzero(last)
    validated = validated[np.linspace(0, len(validated) - 1, min(VALIDATED, len(validated))).astype(np.int64)]
    return Parts(
        before=examples.select(np.flatnonzero(~newest)),
        newest=examples.select(np.flatnonzero(newest & ~last)),
        last=examples.select(validated),
        both=examples.select(np.flatnonzero(~last)),
    )


def without_feature(schema: FeatureSchema) -> FeatureSchema:
    """The schema before ``FEATURE`` came."""
    kept = {name: feature for name, feature in schema.features.items() if name != FEATURE}
    return msgspec.structs.replace(schema, features=kept)


def half_table(schema: FeatureSchema) -> FeatureSchema:
    """The schema before the table ``RESIZED`` grew to its width."""
    table = schema.tables[RESIZED]
    return msgspec.structs.replace(
        schema, tables=schema.tables | {RESIZED: msgspec.structs.replace(table, dim=table.dim // 2)}
    )


def _variant(schema: FeatureSchema, log: LogPaths, out: Path) -> tuple[FeatureSchema, Parts]:
    return schema, divide(schema, log, out)


def _one_pass(config: HeavyConfig) -> HeavyConfig:
    loop = msgspec.structs.replace(config.loop, epochs=1)
    return msgspec.structs.replace(config, loop=loop, validation_share=0.0)


def _cold(schema: FeatureSchema, parts: Parts, config: HeavyConfig, out: Path) -> float:
    """The validation loss of a cold start at its end."""
    config = with_groups(schema, config)
    history = fit(build_model(schema, config), parts.both, parts.last, config, out).history
    loss = history[-1].loss
    return float("nan") if loss is None else loss


def _source(schema: FeatureSchema, examples: Examples, config: HeavyConfig, out: Path) -> WarmSource:
    config = with_groups(schema, config)
    begin_run(out, schema, config)
    train_examples(schema, examples, out, config)
    return open_source(load_run(out).path)


def _adsieve(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "adsieve", *command], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
