import numpy as np
import pytest

from adlogs.counters import PastCounts


def counts() -> PastCounts:
    """Two ads of one advertiser, one of another; one day in which ad 0 was shown four times and clicked once."""
    past = PastCounts(num_users=2, ad_advertisers=np.array([0, 0, 1]), num_advertisers=2)
    past.count_requests(np.array([1, 1]))
    past.count_impressions(
        users=np.array([0, 0, 1, 1]), ads=np.array([0, 0, 0, 0]), clicks=np.array([True, False, False, False])
    )
    past.count_conversions(np.array([0]))
    return past


def test_today_is_not_known_before_it_ends() -> None:
    past = counts()
    assert past.ad_impressions.tolist() == [0, 0, 0]
    assert np.isnan(past.ad_ctr()).all()
    past.end_day()
    assert past.ad_impressions.tolist() == [4, 0, 0]


def test_rates_are_smoothed_by_the_overall_rate() -> None:
    past = counts()
    past.end_day()
    ctr = past.ad_ctr()
    assert ctr[0] == pytest.approx((1 + 20 * 0.25) / (4 + 20))
    assert np.isnan(ctr[1:]).all()
    assert past.ad_cvr()[0] == pytest.approx((1 + 10 * 1.0) / (1 + 10))
    assert past.advertiser_ctr()[:2] == pytest.approx(ctr[0])
    assert past.user_ctr() == pytest.approx([(1 + 20 * 0.25) / 22, (0 + 20 * 0.25) / 22])
    assert past.user_activity().tolist() == [0, 2]


def test_each_day_forgets_a_quarter() -> None:
    past = counts()
    past.end_day()
    past.end_day()
    assert past.ad_impressions.tolist() == [3, 0, 0]
