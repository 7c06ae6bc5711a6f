"""Divides examples in time: what comes first trains, what comes last validates."""

import numpy as np

from contracts.errors import ConfigError, LogError
from modeling.examples import Examples


def split_by_time(examples: Examples, validation_share: float) -> tuple[Examples, Examples | None]:
    """Earlier pairs for training, the last share of them for validation; a request is never divided.

    Args:
        validation_share: In [0, 1); 0 keeps all for training.

    Raises:
        ConfigError: The share is out of range, or leaves one of the parts empty.
        LogError: No pair of a part weighs anything.
    """
    if not 0.0 <= validation_share < 1.0:
        raise ConfigError(f"validation_share: expected a number in [0, 1), got {validation_share}")
    if validation_share == 0.0:
        return _weighing(examples, "train on"), None
    times = np.asarray(examples.event_time)[examples.request_row]
    later = times >= np.quantile(times, 1.0 - validation_share, method="lower")
    if later.all() or not later.any():
        raise ConfigError(f"validation_share: {validation_share} of {len(times):,} pairs leaves one part empty")
    training, validation = examples.select(np.flatnonzero(~later)), examples.select(np.flatnonzero(later))
    return _weighing(training, "train on"), _weighing(validation, "validate on")


def _weighing(examples: Examples, purpose: str) -> Examples:
    if not np.asarray(examples.weight).sum() > 0:
        raise LogError(
            f"{examples.log.candidates}: column sample_weight is 0 in all {len(examples):,} pairs to {purpose}, "
            "expected a weight above 0 in some"
        )
    return examples
