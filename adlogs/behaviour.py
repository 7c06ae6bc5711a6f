"""What users did lately: their newest events, oldest first, and how long ago they last met each category.

Shape letters: U users, C categories, V advertisers, R requests, L the events kept.
"""

from dataclasses import dataclass

import numpy as np

MAX_EVENTS = 50
MICROS_PER_DAY = 86_400_000_000
_LONG_AGO = np.iinfo(np.int64).min // 4


@dataclass(frozen=True)
class Sequences:
    """Histories of R requests, flattened: request r owns the next `lengths[r]` events, oldest first."""

    lengths: np.ndarray  # int32 [R]
    ads: np.ndarray  # int32 [events]
    times: np.ndarray  # int64 [events], microseconds UTC


class Behaviour:
    """The newest events of each user; at most 50 are kept."""

    def __init__(self, num_users: int, ad_categories: np.ndarray, num_categories: int) -> None:
        self._ads = np.zeros((num_users, MAX_EVENTS), dtype=np.int32)
        self._times = np.full((num_users, MAX_EVENTS), _LONG_AGO, dtype=np.int64)
        self._lengths = np.zeros(num_users, dtype=np.int32)
        self._ad_categories = ad_categories
        self._last = np.full((num_users, num_categories), _LONG_AGO, dtype=np.int64)

    def append(self, users: np.ndarray, ads: np.ndarray, times: np.ndarray) -> None:
        """Add events, none of them older than an event already known of its user."""
        if not len(users):
            return
        np.maximum.at(self._last, (users, self._ad_categories[ads]), times)
        touched = np.unique(users)
        known = self.sequences(touched)
        all_users = np.concatenate([np.repeat(touched, known.lengths), users])
        all_ads, all_times = np.concatenate([known.ads, ads]), np.concatenate([known.times, times])
        order = np.lexsort((all_times, all_users))
        all_users, all_ads, all_times = all_users[order], all_ads[order], all_times[order]
        counts = np.bincount(np.searchsorted(touched, all_users), minlength=len(touched))
        from_end = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(all_users))
        kept = from_end < MAX_EVENTS
        lengths = np.minimum(counts, MAX_EVENTS)
        column = np.repeat(lengths, counts)[kept] - 1 - from_end[kept]
        self._ads[all_users[kept], column] = all_ads[kept]
        self._times[all_users[kept], column] = all_times[kept]
        self._lengths[touched] = lengths

    def sequences(self, users: np.ndarray) -> Sequences:
        """Histories of the given users, one a request."""
        lengths = self._lengths[users]
        kept = np.arange(MAX_EVENTS) < lengths[:, None]
        return Sequences(lengths=lengths, ads=self._ads[users][kept], times=self._times[users][kept])

    def age_days(self, users: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Days since each user's last event in each category, float [R, C]; very large where there was none."""
        return (times[:, None] - self._last[users]) / MICROS_PER_DAY


def join_sequences(parts: list[Sequences]) -> Sequences:
    """The histories of several groups of requests, one after the other."""
    return Sequences(
        lengths=np.concatenate([part.lengths for part in parts]),
        ads=np.concatenate([part.ads for part in parts]),
        times=np.concatenate([part.times for part in parts]),
    )
