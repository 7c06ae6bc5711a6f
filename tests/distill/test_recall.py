"""Recall of the heavy top within the survivors, against sets and against rankings whose recall is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.metrics import recall_at, utility_regret
from contracts.probability import sigmoid
from distill.recall import (
    BID_ONLY,
    HISTORICAL,
    RANDOM,
    STUDENT,
    UTILITY,
    RecallReport,
    fitting_pool_size,
    mean_over_pools,
    measure_recall,
    pool_rows,
)
from distill.scoring import ScoredPairs
from distill.survival import survival

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


def _report(pairs: ScoredPairs, **settings: Any) -> RecallReport:
    found = measure_recall(pairs, **settings)
    assert found is not None
    return found.report


def _plain_recall(heavy: np.ndarray, light: np.ndarray, k: int, m: int) -> float:
    best, kept = (set(np.argsort(-u)[:n].tolist()) for u, n in ((heavy, k), (light, m)))
    return len(best & kept) / k


def _plain_utility(pairs: ScoredPairs, logits: np.ndarray) -> np.ndarray:
    paid = [1.0 if head == 2 else sigmoid(row[head]) for row, head in zip(logits, pairs.pays_for, strict=True)]
    return pairs.bid * np.array(paid)


def test_curves_are_means_over_whole_pools(pairs: ScoredPairs) -> None:
    report = _report(pairs, top_k=6, pool_size=60, survivors=SURVIVORS)
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
    report = _report(pairs, top_k=6, pool_size=60, survivors=SURVIVORS)
    for order in (UTILITY, CLICK, CONVERSION):
        assert [report.at(order, RANDOM, m) for m in SURVIVORS] == pytest.approx([m / 60 for m in SURVIVORS])


def test_a_perfect_student_loses_nothing(pairs: ScoredPairs) -> None:
    report = _report(replace(pairs, student=pairs.teacher), top_k=6, pool_size=60, survivors=(6, 60))
    for order in (UTILITY, CLICK, CONVERSION):
        curve = report.curve(order, STUDENT)
        assert curve is not None
        assert curve.recall == pytest.approx([1.0, 1.0])
        assert curve.utility_lost == pytest.approx([0.0, 0.0])


def test_everything_survives_a_cut_as_large_as_the_pool(pairs: ScoredPairs) -> None:
    report = _report(pairs, top_k=6, pool_size=60, survivors=(60,))
    assert all(curve.recall == pytest.approx([1.0]) for curve in report.curves)


def test_no_bids_give_no_utility_order(pairs: ScoredPairs) -> None:
    report = _report(replace(pairs, bid=np.full(len(pairs), np.nan)), top_k=6, pool_size=60, survivors=SURVIVORS)
    assert {curve.order for curve in report.curves} == {CLICK, CONVERSION}
    assert report.curve(UTILITY, STUDENT) is None
    assert np.isnan(report.at(UTILITY, STUDENT, 20))


def test_a_missing_bid_counts_as_the_median(pairs: ScoredPairs) -> None:
    lacking = pairs.bid.copy()
    gone = np.flatnonzero(pairs.request == 0)[:5]
    lacking[gone] = np.nan
    filled = lacking.copy()
    filled[gone] = np.nanmedian(lacking[pairs.request == 0])
    reports = [_report(replace(pairs, bid=bid), pool_size=60, survivors=SURVIVORS) for bid in (lacking, filled)]
    assert [(c.order, c.ranking, c.recall, c.utility_lost) for c in reports[0].curves] == [
        (c.order, c.ranking, c.recall, c.utility_lost) for c in reports[1].curves
    ]


def test_no_whole_pool_gives_no_report(pairs: ScoredPairs) -> None:
    assert measure_recall(pairs, pool_size=61) is None


@pytest.mark.parametrize("distinct", [1000, 4, 1])
def test_all_cuts_at_once_equal_cut_by_cut(distinct: int) -> None:
    """The same as the plain metrics of one cut, whether light utilities are distinct, often tied or all the same."""
    generator = np.random.default_rng(distinct)
    for _ in range(5):
        heavy = np.round(generator.lognormal(size=40), 1)
        light = generator.integers(distinct, size=40).astype(np.float64)
        cuts = (1, 3, 7, 20, 39, 40, 50)
        recall, lost, regret = survival(heavy, light, heavy, 7, cuts)
        assert recall == pytest.approx([recall_at(heavy, light, 7, m) for m in cuts])
        assert lost == pytest.approx([utility_regret(heavy, light, 7, m) for m in cuts])
        assert regret == pytest.approx(lost)


def test_regret_is_what_the_truth_loses(pairs: ScoredPairs) -> None:
    """The heavy top k of the light top m against the k best by the truth, by sets; and the heavy ranker alone."""
    rows = pool_rows(pairs.request, 60)
    truth = np.random.default_rng(8).random((len(rows), 2)) * 0.3
    report = _report(pairs, truth=truth, top_k=6, pool_size=60, survivors=SURVIVORS)
    curve = report.curve(CONVERSION, STUDENT)
    assert curve is not None
    pools = [rows[pairs.request[rows] == request] for request in (0, 2, 5)]
    true = dict(zip(rows.tolist(), truth[:, 1].tolist(), strict=True))

    def lost(pool: np.ndarray, survivors: int) -> float:
        kept = pool[np.argsort(-pairs.student[pool, 1])][:survivors]
        chosen = kept[np.argsort(-pairs.teacher[kept, 1])][:6]
        best = sorted((true[row] for row in pool.tolist()), reverse=True)[:6]
        return 1 - sum(true[row] for row in chosen.tolist()) / sum(best)

    for m, regret in zip(SURVIVORS, curve.regret, strict=True):
        assert regret == pytest.approx(np.mean([lost(pool, m) for pool in pools])), m
    assert report.heavy_regret[CONVERSION][0] == pytest.approx(curve.regret[-1])  # all survive
    assert set(report.heavy_regret) == {CLICK, CONVERSION, UTILITY}
    assert _report(pairs, pool_size=60).heavy_regret == {}


def test_historical_rates_rank_without_a_model(pairs: ScoredPairs) -> None:
    rows = pool_rows(pairs.request, 60)
    rates = np.random.default_rng(9).random((len(rows), 2))
    report = _report(pairs, rates=rates, top_k=6, pool_size=60, survivors=SURVIVORS)
    where = {row: place for place, row in enumerate(rows.tolist())}
    utility = _plain_utility(pairs, pairs.teacher)
    for order in (CLICK, UTILITY):
        recalls = []
        for request in (0, 2, 5):
            pool = np.flatnonzero(pairs.request == request)
            own = rates[[where[row] for row in pool.tolist()]]
            paid = [1.0 if head == 2 else row[head] for head, row in zip(pairs.pays_for[pool], own, strict=True)]
            heavy, light = (
                (utility[pool], pairs.bid[pool] * paid) if order == UTILITY else (pairs.teacher[pool, 0], own[:, 0])
            )
            recalls.append([_plain_recall(heavy, light, 6, m) for m in SURVIVORS])
        curve = report.curve(order, HISTORICAL)
        assert curve is not None
        assert curve.recall == pytest.approx(np.mean(recalls, axis=0))


def test_intervals_of_curves_resample_pools() -> None:
    values = np.random.default_rng(3).random((40, 2))
    values[:3, 1] = np.nan
    mean, bounds = mean_over_pools(values)
    assert mean == pytest.approx(np.nanmean(values, axis=0))
    resampled = np.random.default_rng(0)
    drawn = [np.nanmean(values[resampled.integers(40, size=40)], axis=0) for _ in range(400)]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    assert bounds == pytest.approx(np.stack([low, high]), abs=1e-12)
    assert np.isnan(mean_over_pools(values[:9])[1]).all()


def test_pools_without_bids_or_with_a_teacher_that_is_no_number_do_not_count(pairs: ScoredPairs) -> None:
    first = pairs.request == 0
    alone = _report(_only(pairs, ~first), pool_size=60, survivors=SURVIVORS)
    bid = np.where(first, np.nan, pairs.bid)
    without_bids = _report(replace(pairs, bid=bid), pool_size=60, survivors=SURVIVORS)
    assert without_bids.curve(UTILITY, STUDENT).recall == pytest.approx(alone.curve(UTILITY, STUDENT).recall)
    teacher = np.where(first[:, None], np.nan, pairs.teacher)
    undefined = _report(replace(pairs, teacher=teacher), pool_size=60, survivors=SURVIVORS)
    assert undefined.curve(CLICK, STUDENT).recall == pytest.approx(alone.curve(CLICK, STUDENT).recall)


def _only(pairs: ScoredPairs, keep: np.ndarray) -> ScoredPairs:
    names = ("request", "stage", "teacher", "student", "labels", "weight", "bid", "pays_for")
    return replace(pairs, **{name: getattr(pairs, name)[keep] for name in names})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1_000] + [50] * 99, 1_000),
        ([400] * 49 + [300] * 30, 300),
        ([400] * 49 + [100] * 30, 400),
        ([101, 150], 101),
        ([100] * 99, 1_000),
    ],
)
def test_the_pool_size_that_a_log_has(sizes: list[int], expected: int) -> None:
    """The usual one where a request has it or nothing would be cut; else what fifty requests have, or all that cut."""
    request = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    assert fitting_pool_size(request) == expected
