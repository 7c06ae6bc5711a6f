"""Recall of the heavy top within the survivors, against sets and against rankings whose recall is known."""

from dataclasses import replace

import numpy as np
import pytest

from contracts.probability import sigmoid
from distill.recall import BID_ONLY, RANDOM, STUDENT, UTILITY, measure_recall
from distill.scoring import ScoredPairs

SURVIVORS = (5, 20, 60)
CLICK, CONVERSION = "equal bids, click", "equal bids, conversion"


@pytest.fixture(scope="module")
def pairs() -> ScoredPairs:
    """Three whole pools of 60 ads and, between them, requests of 8; pairs in mixed order."""
    generator = np.random.default_rng(4)
    request = np.repeat(np.arange(6, dtype=np.int32), [60, 8, 60, 8, 8, 60])
    request = request[generator.permutation(len(request))]
    teacher = generator.normal(size=(len(request), 2))
    return ScoredPairs(
        tasks=("click", "conversion"),
        request=request,
        stage=np.zeros(len(request), np.int8),
        teacher=teacher,
        student=teacher + generator.normal(scale=0.7, size=teacher.shape),
        labels=np.full((len(request), 2), np.nan, np.float32),
        weight=np.ones(len(request)),
        bid=generator.lognormal(size=len(request)),
        pays_for=generator.integers(3, size=len(request)),
    )


def _plain_recall(heavy: np.ndarray, light: np.ndarray, k: int, m: int) -> float:
    best, kept = (set(np.argsort(-u)[:n].tolist()) for u, n in ((heavy, k), (light, m)))
    return len(best & kept) / k


def _plain_utility(pairs: ScoredPairs, logits: np.ndarray) -> np.ndarray:
    paid = [1.0 if head == 2 else sigmoid(row[head]) for row, head in zip(logits, pairs.pays_for, strict=True)]
    return pairs.bid * np.array(paid)


def test_curves_are_means_over_whole_pools(pairs: ScoredPairs) -> None:
    report = measure_recall(pairs, top_k=6, pool_size=60, survivors=SURVIVORS)
    assert report is not None
    assert (report.requests, report.pool_size) == (3, (60, 60))
    pools = [np.flatnonzero(pairs.request == request) for request in (0, 2, 5)]
    utility = _plain_utility(pairs, pairs.teacher), _plain_utility(pairs, pairs.student)
    orders = {
        (UTILITY, STUDENT): utility,
        (UTILITY, BID_ONLY): (utility[0], pairs.bid),
        (CLICK, STUDENT): (pairs.teacher[:, 0], pairs.student[:, 0]),
        (CONVERSION, STUDENT): (pairs.teacher[:, 1], pairs.student[:, 1]),
    }
    for (order, ranking), (heavy, light) in orders.items():
        for m in SURVIVORS:
            expected = np.mean([_plain_recall(heavy[rows], light[rows], 6, m) for rows in pools])
            assert report.at(order, ranking, m) == pytest.approx(expected), (order, ranking, m)


def test_random_survivors_keep_their_share(pairs: ScoredPairs) -> None:
    report = measure_recall(pairs, top_k=6, pool_size=60, survivors=SURVIVORS)
    assert report is not None
    for order in (UTILITY, CLICK, CONVERSION):
        assert [report.at(order, RANDOM, m) for m in SURVIVORS] == pytest.approx([m / 60 for m in SURVIVORS])


def test_a_perfect_student_loses_nothing(pairs: ScoredPairs) -> None:
    report = measure_recall(replace(pairs, student=pairs.teacher), top_k=6, pool_size=60, survivors=(6, 60))
    assert report is not None
    for order in (UTILITY, CLICK, CONVERSION):
        curve = report.curve(order, STUDENT)
        assert curve is not None
        assert curve.recall == pytest.approx([1.0, 1.0])
        assert curve.utility_lost == pytest.approx([0.0, 0.0])


def test_everything_survives_a_cut_as_large_as_the_pool(pairs: ScoredPairs) -> None:
    report = measure_recall(pairs, top_k=6, pool_size=60, survivors=(60,))
    assert report is not None
    assert all(curve.recall == pytest.approx([1.0]) for curve in report.curves)


def test_no_bids_give_no_utility_order(pairs: ScoredPairs) -> None:
    report = measure_recall(replace(pairs, bid=np.full(len(pairs), np.nan)), top_k=6, pool_size=60, survivors=SURVIVORS)
    assert report is not None
    assert {curve.order for curve in report.curves} == {CLICK, CONVERSION}
    assert report.curve(UTILITY, STUDENT) is None
    assert np.isnan(report.at(UTILITY, STUDENT, 20))


def test_a_missing_bid_counts_as_the_median(pairs: ScoredPairs) -> None:
    lacking = pairs.bid.copy()
    gone = np.flatnonzero(pairs.request == 0)[:5]
    lacking[gone] = np.nan
    filled = lacking.copy()
    filled[gone] = np.nanmedian(lacking[pairs.request == 0])
    reports = [measure_recall(replace(pairs, bid=bid), pool_size=60, survivors=SURVIVORS) for bid in (lacking, filled)]
    assert reports[0] == reports[1]


def test_no_whole_pool_gives_no_report(pairs: ScoredPairs) -> None:
    assert measure_recall(pairs, pool_size=61) is None
