"""Statistics of the past: counts from strictly earlier days, frozen at the split.

Letters: N impressions, M rows asked for, K counts.
"""

import numpy as np

from adlogs.kuairand_rows import NUM_HOURS, NUM_TABS, Catalogue, Impressions
from contracts.errors import LogError

COUNTS = ("impressions", "ctr", "engage_rate", "long_rate")
"""Suffixes of the statistics of a key: how often it was shown, and smoothed rates of the three outcomes."""


# Keys, each a sequence of parts, and the trials that smoothing counts beforehand at the overall rate: few where the key
# is narrow, since there most rows would else be the prior.
_PRIOR_TRIALS = {
    "video": 20.0,
    "author": 20.0,
    "tag": 20.0,
    "music": 20.0,
    "user": 5.0,
    "user_tab": 3.0,
    "user_author": 2.0,
    "user_tag": 3.0,
    "user_video": 1.0,
    "video_tab": 10.0,
    "tab": 10.0,
    "tab_hour": 20.0,
}


class PastCounts:
    """How often each key was seen, and with what outcome, before a given day.

    Args:
        keys: int64 [N], not negative.
        days: int64 [N], from 0 to ``num_days - 1``.
        outcomes: [N, K - 1] of 0 and 1.
        num_days: Days that the log can tell apart.

    Example:
        >>> counts = PastCounts(np.array([4, 4]), np.array([0, 1]), np.array([[1], [0]]), num_days=3)
        >>> counts.before(np.array([4, 4, 4, 9]), np.array([0, 1, 2, 2])).tolist()
        [[0.0, 0.0], [1.0, 1.0], [2.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, keys: np.ndarray, days: np.ndarray, outcomes: np.ndarray, num_days: int) -> None:
        self._num_days = num_days + 1
        self._cells, cell = np.unique(keys * self._num_days + days, return_inverse=True)
        sums = [np.bincount(cell, weights=values) for values in (np.ones(len(keys)), *outcomes.T)]
        self._running = np.concatenate([np.zeros((1, len(sums))), np.cumsum(np.stack(sums, axis=1), axis=0)])

    def before(self, keys: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Counts of strictly earlier days, float64 [M, K]: impressions, then one count an outcome."""
        first = keys * self._num_days
        begin, end = np.searchsorted(self._cells, first), np.searchsorted(self._cells, first + days)
        return self._running[end] - self._running[begin]


class PastStatistics:
    """Statistics of the past for any (user, video, tab) as of a snapshot.

    A snapshot is a local day; it knows the impressions of earlier days up to the split. The last one is the day after
    the split's: what comes later reads that one, so that nothing of the test rows is ever counted.

    Args:
        training: Impressions up to the split.
        catalogue: The videos.

    Raises:
        LogError: There is no impression.
    """

    def __init__(self, training: Impressions, catalogue: Catalogue) -> None:
        if not len(training):
            raise LogError("no impression before the split is left, expected some to count statistics of the past from")
        self._catalogue = catalogue
        self.first_day = int(training.day.min())
        self.last_day = int(training.day.max()) + 1
        days = training.day - self.first_day
        outcomes = np.stack([training.click, training.engage, training.long_view], axis=1)
        self._num_days = self.last_day - self.first_day + 1
        self._overall = PastCounts(np.zeros(len(days), np.int64), days, outcomes, self._num_days)
        who = vars(training)
        self._counts = {
            name: PastCounts(self._key(name, who), days, outcomes, self._num_days) for name in _PRIOR_TRIALS
        }

    def snapshot(self, day: np.ndarray) -> np.ndarray:
        """The snapshot that rows of a day read, int64."""
        return np.clip(day, self.first_day, self.last_day)

    def columns(self, names: tuple[str, ...], snapshot: np.ndarray, **who: np.ndarray) -> dict[str, np.ndarray]:
        """``<name>_<statistic>`` for each key named: float32 [M], NaN on the first day, which has no past.

        Args:
            names: Kinds of keys, such as ``video`` or ``user_tag``.
            snapshot: int64 [M].
            **who: ``user``, ``video``, ``tab`` and ``hour``, those that the keys need.
        """
        days = snapshot - self.first_day
        overall = self._overall.before(np.zeros(len(days), np.int64), days)
        found: dict[str, np.ndarray] = {}
        for name in names:
            counts = self._counts[name].before(self._key(name, who), days)
            found |= _statistics(name, counts, overall)
        return found

    def _key(self, name: str, who: dict[str, np.ndarray]) -> np.ndarray:
        """Numbers that stand for a key: its parts, one after the other; only the first has no bound."""
        shared = self._catalogue
        sizes = {"author": shared.num_authors, "tag": len(shared.tag_names), "video": len(shared)}
        sizes |= {"tab": NUM_TABS, "hour": NUM_HOURS}
        key = np.zeros(1, np.int64)
        for part in name.split("_"):
            values = getattr(shared, part)[who["video"]] if part in ("author", "tag", "music") else who[part]
            key = key * sizes.get(part, 0) + values
        return key


def _statistics(name: str, counts: np.ndarray, overall: np.ndarray) -> dict[str, np.ndarray]:
    """``(events + prior_trials * overall rate) / (trials + prior_trials)`` for each outcome; float32 [M]."""
    prior_trials = _PRIOR_TRIALS[name]
    has_past = overall[:, 0] > 0
    rates = overall[:, 1:] / np.maximum(overall[:, :1], 1.0)
    smoothed = (counts[:, 1:] + prior_trials * rates) / (counts[:, :1] + prior_trials)
    values = np.concatenate([counts[:, :1], smoothed], axis=1)
    values[~has_past] = np.nan
    return {f"{name}_{suffix}": values[:, k].astype(np.float32) for k, suffix in enumerate(COUNTS)}
