"""Statistics of the past as a log knows them: from strictly earlier days only, and forgotten by a quarter a day.

Forgetting keeps them stationary, so that a model meets the same distribution tomorrow as in training.

Shape letters: U users, A ads, V advertisers.
"""

import numpy as np

_PRIOR_IMPRESSIONS = 20.0
_PRIOR_CLICKS = 10.0
_KEPT_PER_DAY = 0.75


class PastCounts:
    """Counts up to the end of yesterday, beside those of today that are not known yet."""

    def __init__(self, num_users: int, ad_advertisers: np.ndarray, num_advertisers: int) -> None:
        num_ads = len(ad_advertisers)
        self._ad_advertisers, self._num_advertisers = ad_advertisers, num_advertisers
        self.ad_impressions, self._ad_clicks, self._ad_conversions = (np.zeros(num_ads) for _ in range(3))
        self._user_impressions, self._user_clicks = np.zeros(num_users), np.zeros(num_users)
        self._requests = np.zeros(num_users)
        self._today: list[tuple[np.ndarray, np.ndarray]] = []

    def count_requests(self, users: np.ndarray) -> None:
        """Note today's requests."""
        self._today.append((self._requests, users))

    def count_impressions(self, users: np.ndarray, ads: np.ndarray, clicks: np.ndarray) -> None:
        """Note today's impressions and which of them were clicked (bool)."""
        self._today += [(self.ad_impressions, ads), (self._ad_clicks, ads[clicks])]
        self._today += [(self._user_impressions, users), (self._user_clicks, users[clicks])]

    def count_conversions(self, ads: np.ndarray) -> None:
        """Note conversions that became known today."""
        self._today.append((self._ad_conversions, ads))

    def end_day(self) -> None:
        """Let today's counts become past."""
        for counts in (
            self.ad_impressions, self._ad_clicks, self._ad_conversions,
            self._user_impressions, self._user_clicks, self._requests,
        ):  # fmt: skip
            counts *= _KEPT_PER_DAY
        for counts, members in self._today:
            np.add.at(counts, members, 1.0)
        self._today.clear()

    def ad_ctr(self) -> np.ndarray:
        """Smoothed past click rate of each ad; NaN where it was never shown."""
        return _smoothed(self._ad_clicks, self.ad_impressions, _PRIOR_IMPRESSIONS)

    def ad_cvr(self) -> np.ndarray:
        """Smoothed past conversions per click of each ad; NaN where it was never clicked."""
        return _smoothed(self._ad_conversions, self._ad_clicks, _PRIOR_CLICKS)

    def advertiser_ctr(self) -> np.ndarray:
        """Smoothed past click rate of each ad's advertiser, [A]; NaN where it never showed an ad."""
        impressions, clicks = (
            np.bincount(self._ad_advertisers, weights=counts, minlength=self._num_advertisers)
            for counts in (self.ad_impressions, self._ad_clicks)
        )
        return _smoothed(clicks, impressions, _PRIOR_IMPRESSIONS)[self._ad_advertisers]

    def user_ctr(self) -> np.ndarray:
        """Smoothed past click rate of each user; NaN where nothing was shown to them."""
        return _smoothed(self._user_clicks, self._user_impressions, _PRIOR_IMPRESSIONS)

    def user_activity(self) -> np.ndarray:
        """Requests of each user on earlier days, the latest counting most."""
        return self._requests.copy()


def _smoothed(events: np.ndarray, trials: np.ndarray, prior_trials: float) -> np.ndarray:
    """(events + prior * overall rate) / (trials + prior), NaN without a trial."""
    overall = events.sum() / max(trials.sum(), 1.0)
    return np.where(trials >= 0.5, (events + prior_trials * overall) / (trials + prior_trials), np.nan)
