"""Whether BF16 learns what fp32 learns: the ``small`` preset, the same examples in the same order, three seeds each."""

from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from benchmarks.harness import Target
from contracts.schema import FeatureSchema
from heavy_ranker.presets import small
from heavy_ranker.run import build_model
from heavy_ranker.train import fit
from modeling.examples import Examples
from modeling.split import split_by_time

SEEDS = (0, 1, 2)
LARGEST_DIFFERENCE = 0.002
"""Of the losses' means, as a share: far below what a seed changes."""


def quality(schema: FeatureSchema, examples: Examples) -> tuple[dict[str, Any], list[Target]]:
    """Validation losses after one epoch, by precision, seeds in turn."""
    training, validation = split_by_time(examples, small().validation_share)
    losses: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for seed in SEEDS:
        losses["fp32"].append(_loss(schema, training, validation, "fp32", seed))
        losses["bf16"].append(_loss(schema, training, validation, "bf16", seed))
    figures: dict[str, Any] = {"examples of each training": len(training)}
    for precision, found in losses.items():
        figures[f"validation loss, {precision}, mean of {len(SEEDS)} seeds"] = mean(found)
        figures[f"validation loss, {precision}, standard deviation over seeds"] = stdev(found)
    pairs = [bf16 / fp32 - 1 for fp32, bf16 in zip(losses["fp32"], losses["bf16"], strict=True)]
    figures["BF16 over fp32 - 1, by seed"] = ", ".join(f"{pair:+.5f}" for pair in pairs)
    return figures, [Target("validation loss, BF16 over fp32 - 1", mean(pairs), at_most=LARGEST_DIFFERENCE)]


def _loss(
    schema: FeatureSchema,
    training: Examples,
    validation: Examples | None,
    precision: Literal["fp32", "bf16"],
    seed: int,
) -> float:
    config = small()
    loop = msgspec.structs.replace(config.loop, epochs=1, precision=precision)
    config = msgspec.structs.replace(config, loop=loop, seed=seed)
    with TemporaryDirectory(prefix="adsieve-quality-") as directory:
        found = fit(build_model(schema, config), training, validation, config, Path(directory)).best_loss
    if found is None:
        raise ValueError("the log is too short to validate on")
    return found
