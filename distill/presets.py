"""Distillations that were tried. A preset is a function; what it returns is changed by a file or by options."""

from collections.abc import Callable

from distill.config import DistillConfig
from modeling.loop_config import LoopConfig
from towers import presets as towers
from towers.config import TwoTowerConfig


def standard() -> DistillConfig:
    """For standard ads."""
    return _distillation(towers.standard(), learning_rate=8e-3)


def shopping() -> DistillConfig:
    """For shopping ads."""
    return _distillation(towers.shopping(), learning_rate=8e-3)


def plain_mlp() -> DistillConfig:
    """The conventional two-tower of one scenario, to compare with."""
    return _distillation(towers.plain_mlp(), learning_rate=6e-3)


def multi_domain() -> DistillConfig:
    """One two-tower for the scenarios standard and shopping together, to compare with."""
    return _distillation(towers.multi_domain(), learning_rate=4e-3)


PRESETS: dict[str, Callable[[], DistillConfig]] = {
    "standard": standard,
    "shopping": shopping,
    "plain_mlp": plain_mlp,
    "multi_domain": multi_domain,
}


DEFAULT_PRESET, SEVERAL_SCENARIOS = "standard", "multi_domain"
SCENARIO_PRESETS = {"shopping": "shopping"}
"""The preset of a scenario, where another one than the default was found better for it. A choice, no list of names."""


def _distillation(config: TwoTowerConfig, *, learning_rate: float) -> DistillConfig:
    """Small batches for nine passes: a few days of log make few steps, and students were still improving at the end.

    Rates were chosen by the KL on the last tenth of the training pairs (docs/results/distill-quality.md).
    """
    return DistillConfig(
        towers=config,
        loop=LoopConfig(
            epochs=9, learning_rate=learning_rate, weight_decay=1e-5, warmup_share=0.05, precision="auto", patience=3
        ),
        table_learning_rate=0.15,
        pairs_per_batch=2_048,
        validation_share=0.1,
        seed=0,
    )
