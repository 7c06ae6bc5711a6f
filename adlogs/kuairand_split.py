"""Where the real log is divided in time: training, its last part for validation, and test.

All rows take part, before any is left out, so that the figures of different models are about the same rows.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

TEST_QUANTILE = 0.75
VALIDATION_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class Split:
    """Moments in milliseconds UTC; each part begins at its moment and ends before the next.

    Args:
        validate_from_ms: Training rows from here on, the last 15 % of them by time, are for validation.
        train_until_ms: Rows from here on, those above the 75 % quantile of time, are for the test.
    """

    validate_from_ms: int
    train_until_ms: int


def split_by_time(time_ms: np.ndarray) -> Split:
    """Fix the split on the times of all rows.

    Example:
        >>> split_by_time(np.arange(100))
        Split(validate_from_ms=63, train_until_ms=75)
    """
    cut = np.quantile(time_ms, TEST_QUANTILE)
    validate = np.quantile(time_ms[time_ms <= cut], 1.0 - VALIDATION_SHARE)
    return Split(validate_from_ms=int(validate) + 1, train_until_ms=int(cut) + 1)


def iso(time_ms: int) -> str:
    """ISO 8601, UTC.

    Example:
        >>> iso(1_650_812_741_436)
        '2022-04-24T15:05:41.436000+00:00'
    """
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat()
