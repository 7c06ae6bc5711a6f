"""Examples to equal quality: warm starts against a cold one, after a feature came, a table grew, and one more day.

A cold start learns all days but the last in one pass; its loss at the end, on impressions of the last day, is the
quality to reach. Warm starts begin from a model that learned all of these days but the newest: one of a schema without
the feature, one with a table of half the width, and one of the same schema. Each passes once over the newest day; where
that does not suffice it begins again and passes over two days, then over four. What is counted is the examples of the
pass that succeeds until its loss on the last day is not above the cold start's.
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
SHARE = "share of the cold start's examples"
DAYS = (1, 2, 4)
LOOKS = 16
"""Validations of a warm start in a pass."""


@dataclass(frozen=True)
class Parts:
    """Impressions of one schema: all but the last day's, those before the newest of these days, the newest days by
    their number, and some of the last day's, which none learns from."""

    learned: Examples
    before: Examples
    newest: dict[int, Examples]
    last: Examples


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
    worst = float(np.max([share for name, share in figures.items() if name.endswith(SHARE)]))  # NaN stays NaN
    return finish(options, figures, [Target(f"largest {SHARE}", worst, at_most=0.5)])


def compare(schema: FeatureSchema, log: LogPaths, out: Path) -> dict[str, Any]:
    """Figures of the cold start and of the three warm ones."""
    config = _one_pass(small())
    parts = divide(schema, log, out)
    cold = _cold(schema, parts, config, out / "cold")
    figures: dict[str, Any] = {"cold start: examples": len(parts.learned), "cold start: validation loss": cold}
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
    """Pass over one, two, four days until the loss is not above ``goal``; NaN examples where none suffices."""
    figures: dict[str, Any] = {}
    for days, newest in parts.newest.items():
        steps = -(-len(newest) // config.batch_size)
        loop = msgspec.structs.replace(config.loop, validate_every=max(1, steps // LOOKS))
        own = with_continued_groups(schema, msgspec.structs.replace(config, loop=loop), source)
        own = with_groups(schema, own)
        model = build_model(schema, own)
        warm = carry(source, schema, own, model)
        history = fit(model, newest, parts.last, own, out / f"{days}", warm=warm).history
        reached = next((look for look in history if look.loss is not None and look.loss <= goal), None)
        examples = float("nan") if reached is None else min(reached.step * config.batch_size, len(newest))
        figures = {
            "share of weights carried over": warm.report.carried["dense weights"] / warm.report.total["dense weights"],
            "share of table rows carried over": warm.report.carried["table rows"] / warm.report.total["table rows"],
            "days in the pass": days,
            "loss at the first look": history[0].loss,
            "loss at the end": history[-1].loss,
            "examples until the cold start's loss": examples,
            SHARE: examples / len(parts.learned),
        }
        if reached is not None:
            break
    return figures


def divide(schema: FeatureSchema, log: LogPaths, out: Path) -> Parts:
    """The impressions of a log by day."""
    examples = read_impressions(schema, log, out / "examples")
    times = np.asarray(examples.event_time)[examples.request_row]
    days = read_table(log.requests, ["event_time"])["event_time"].to_pylist()
    midnight = max(days).replace(hour=0, minute=0, second=0, microsecond=0)
    newest = {days: times >= utc_microseconds(midnight - timedelta(days=days)) for days in DAYS}
    last = times >= utc_microseconds(midnight)
    validated = np.flatnonzero(last)
    validated = validated[np.linspace(0, len(validated) - 1, min(VALIDATED, len(validated))).astype(np.int64)]
    return Parts(
        learned=examples.select(np.flatnonzero(~last)),
        before=examples.select(np.flatnonzero(~newest[1])),
        newest={days: examples.select(np.flatnonzero(mask & ~last)) for days, mask in newest.items()},
        last=examples.select(validated),
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
    history = fit(build_model(schema, config), parts.learned, parts.last, config, out).history
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
