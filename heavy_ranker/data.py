"""The impressions that a heavy ranker learns from: what was shown and has a label, split by time."""

from datetime import datetime
from pathlib import Path

import numpy as np

from contracts.errors import ConfigError
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from modeling.examples import Examples, encode_log


def read_impressions(
    schema: FeatureSchema, log: LogPaths, cache: Path, *, start: datetime | None = None, end: datetime | None = None
) -> Examples:
    """Winners with a label for the first task, of requests with ``start <= event_time < end``.

    Labels that are not known yet (immature, not shown) stay NaN, never 0.

    Args:
        schema: A fitted schema.
        cache: Directory that keeps the encoded log; a second call maps it.
    """
    return encode_log(schema, log, cache, teacher=False, labels=True, start=start, end=end, stages=("winner",))


def split_by_time(examples: Examples, validation_share: float) -> tuple[Examples, Examples | None]:
    """Earlier impressions for training, the last share of them for validation; a request is never divided.

    Args:
        validation_share: In [0, 1); 0 keeps all for training.

    Raises:
        ConfigError: The share is out of range, or leaves one of the parts empty.
    """
    if not 0.0 <= validation_share < 1.0:
        raise ConfigError(f"validation_share: expected a number in [0, 1), got {validation_share}")
    if validation_share == 0.0:
        return examples, None
    times = np.asarray(examples.event_time)[examples.request_row]
    cut = np.quantile(times, 1.0 - validation_share, method="lower")
    later = times >= cut
    if later.all() or not later.any():
        raise ConfigError(
            f"validation_share: {validation_share} of {len(times)} impressions leaves nothing on one side of the cut"
        )
    return examples.select(np.flatnonzero(~later)), examples.select(np.flatnonzero(later))
