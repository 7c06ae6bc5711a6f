"""Bootstrap replicates: against a slow bootstrap of whole requests, and whether intervals cover what they should."""

import numpy as np
import pytest

from contracts import metrics as plain
from contracts.probability import sigmoid
from distill.measures import Measured, measure_slices
from distill.metric_sums import METRICS
from distill.replicates import MIN_REQUESTS, Replicates, draw_replicates, intervals
from distill.scoring import ScoredPairs


def _pairs(num_requests: int, seed: int, *, ads: int = 8) -> ScoredPairs:
    """Winners of some requests, each of which shifts all its pairs: pairs of one request are alike."""
    generator = np.random.default_rng(seed)
    count = num_requests * ads
    request = np.repeat(np.arange(num_requests, dtype=np.int32), ads)
    teacher = generator.normal(-1, 1, size=(count, 1)) + generator.normal(scale=0.7, size=(num_requests, 1))[request]
    student = (
        teacher + generator.normal(scale=0.6, size=(count, 1)) + 0.3 * generator.normal(size=(num_requests, 1))[request]
    )
    labels = (generator.random((count, 1)) < sigmoid(teacher)).astype(np.float32)
    labels[generator.random(count) < 0.2] = np.nan
    return ScoredPairs(
        tasks=("click",),
        request=request,
        stage=np.full(count, 2, np.int8),
        teacher=teacher,
        student=np.round(student, 1),  # ties
        labels=labels,
        weight=generator.integers(1, 4, size=count).astype(np.float64),
        bid=np.ones(count),
        pays_for=np.zeros(count, np.int64),
    )


def _measured(pairs: ScoredPairs, drawn: Replicates, against: str) -> Measured:
    wanted = ("winners", against, "student")
    (found,) = [
        one
        for one in measure_slices(pairs, {}, drawn)
        if (one.metrics.stage, one.metrics.against, one.metrics.model) == wanted
    ]
    return found


def _slow(pairs: ScoredPairs, against: str, factors: list[np.ndarray]) -> np.ndarray:
    """Every metric by its plain formula, with the weights of pairs multiplied by each of the factors."""
    known = np.ones(len(pairs), bool) if against == "teacher" else ~np.isnan(pairs.labels[:, 0])
    soft = against == "teacher"
    teacher, student, request = pairs.teacher[known, 0], pairs.student[known, 0], pairs.request[known]
    label = sigmoid(teacher) if soft else pairs.labels[known, 0].astype(np.float64)
    groups = [np.flatnonzero(request == one) for one in np.unique(request)]
    within = np.array([plain.auc(label[g], student[g], pairs.weight[known][g]) for g in groups])
    defined = ~np.isnan(within)
    rows = []
    for factor in factors:
        weight = (pairs.weight * factor)[known]
        of_groups = np.array([weight[g].sum() for g in groups])
        rows.append(
            [
                plain.bernoulli_kl(teacher, student, weight) if soft else np.nan,
                plain.log_mae(teacher, student, weight) if soft else np.nan,
                plain.normalised_entropy(label, sigmoid(student), weight),
                plain.auc(label, student, weight),
                np.average(within[defined], weights=of_groups[defined]),
                plain.calibration_ratio(label, sigmoid(student), weight),
            ]
        )
    return np.array(rows)


@pytest.mark.parametrize("against", ["teacher", "labels"])
def test_replicates_equal_a_slow_bootstrap_of_requests(against: str) -> None:
    """All but AUC exactly; AUC by its influence, so that intervals agree to a small part of their width."""
    pairs = _pairs(150, seed=1)
    drawn = draw_replicates(pairs.request, draws=200, seed=3)
    found = _measured(pairs, drawn, against)
    factors = [np.ones(len(pairs)), *drawn.counts[drawn.unit].T.astype(np.float64)]
    point, *resampled = _slow(pairs, against, factors)
    slow = np.array(resampled)
    place = METRICS.index("auc")
    others = [column for column in range(len(METRICS)) if column != place]
    np.testing.assert_allclose(found.replicates[:, others], slow[:, others], rtol=1e-9)
    np.testing.assert_allclose([getattr(found.metrics, name) for name in METRICS], point, rtol=1e-9)
    spread = slow[:, place].std()
    error = found.replicates[:, place] - slow[:, place]
    assert np.sqrt((error**2).mean()) < 0.12 * spread
    low, high = np.quantile(slow[:, place], [0.025, 0.975])
    assert found.metrics.intervals["auc"] == pytest.approx((low, high), abs=0.06 * (high - low))


def test_intervals_cover_the_value_of_all_requests() -> None:
    """Of 200 samples of 60 requests, those whose interval holds the value of 20,000 requests: 95 % but for chance."""
    everyone = _pairs(20_000, seed=0)
    whole = _measured(everyone, draw_replicates(everyone.request, draws=1), "teacher").metrics
    covered = dict.fromkeys(METRICS, 0)
    for seed in range(200):
        pairs = _pairs(60, seed=seed + 1)
        found = _measured(pairs, draw_replicates(pairs.request, draws=200, seed=seed), "teacher").metrics
        for name in METRICS:
            low, high = found.intervals[name]
            covered[name] += low <= getattr(whole, name) <= high
    for name, count in covered.items():
        assert 0.88 <= count / 200 <= 0.99, (name, count)


def test_many_requests_are_resampled_in_groups_of_equal_spread() -> None:
    """In 500 groups the intervals are as wide as over 3,000 requests, within what 400 replicates leave to chance."""
    pairs = _pairs(3_000, seed=5)
    widths = []
    for units in (3_000, 500):
        drawn = draw_replicates(pairs.request, max_units=units)
        assert drawn.num_units == units
        bounds = _measured(pairs, drawn, "teacher").metrics.intervals
        widths.append([high - low for low, high in bounds.values()])
    np.testing.assert_allclose(widths[1], widths[0], rtol=0.25)
    sizes = np.bincount(draw_replicates(np.arange(3_000), max_units=500).unit)
    assert (sizes.min(), sizes.max()) == (6, 6)


def test_replicates_draw_as_many_requests_as_there_are() -> None:
    drawn = draw_replicates(np.array([7, 7, 3, 9], np.int32), draws=50)
    assert drawn.unit.tolist() == [1, 1, 0, 2]
    assert drawn.counts.shape == (3, 50)
    assert (drawn.counts.sum(axis=0) == 3).all()
    again = draw_replicates(np.array([7, 7, 3, 9], np.int32), draws=50)
    np.testing.assert_array_equal(drawn.counts, again.counts)
    values = np.array([[1.0, 10.0], [2.0, 20.0]])
    expected = drawn.counts[[0, 2]].T.astype(float) @ values
    np.testing.assert_array_equal(drawn.sums(np.array([0, 2]), values), expected)


def test_few_requests_have_no_interval() -> None:
    for count in (MIN_REQUESTS - 1, MIN_REQUESTS):
        pairs = _pairs(count, seed=2)
        bounds = _measured(pairs, draw_replicates(pairs.request), "teacher").metrics.intervals["kl"]
        assert np.isnan(bounds).all() == (count < MIN_REQUESTS)


def test_an_interval_needs_nine_in_ten_replicates() -> None:
    values = np.arange(100.0)[:, None] * [1, 1, 1]
    values[:10, 1], values[:11, 2] = np.nan, np.nan
    bounds = intervals(values)
    np.testing.assert_allclose(bounds[:, 0], np.quantile(values[:, 0], [0.025, 0.975]))
    np.testing.assert_allclose(bounds[:, 1], np.quantile(values[10:, 1], [0.025, 0.975]))
    assert np.isnan(bounds[:, 2]).all()
