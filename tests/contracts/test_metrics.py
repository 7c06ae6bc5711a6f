"""Each metric equals scikit-learn or an independent formula; undefined cases are NaN."""

from itertools import permutations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import entropy
from sklearn import metrics as sklearn_metrics

from contracts.metrics import (
    auc,
    bernoulli_kl,
    calibration_ratio,
    gauc,
    log_loss,
    log_mae,
    normalised_entropy,
    recall_at,
    utility_regret,
)

RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 2, 500)
PROBABILITIES = np.round(RNG.random(500), 2)
WEIGHTS = np.round(RNG.random(500) * 3, 1)
GROUPS = RNG.integers(0, 60, 500)
EACH_WEIGHT = pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["unweighted", "weighted"])


@EACH_WEIGHT
def test_log_loss_equals_scikit_learn(weight: np.ndarray | None) -> None:
    expected = sklearn_metrics.log_loss(LABELS, PROBABILITIES, sample_weight=weight)
    assert log_loss(LABELS, PROBABILITIES, weight) == pytest.approx(expected, rel=1e-12)


def test_log_loss_of_a_wrong_certainty_is_finite_and_soft_labels_count() -> None:
    assert log_loss([1], [0.0]) == pytest.approx(np.log(2) * 52)
    assert log_loss([0.25], [0.5]) == pytest.approx(np.log(2))


@EACH_WEIGHT
def test_normalised_entropy_is_log_loss_over_base_rate_entropy(weight: np.ndarray | None) -> None:
    base = np.average(LABELS, weights=weight)
    expected = sklearn_metrics.log_loss(LABELS, PROBABILITIES, sample_weight=weight) / entropy([base, 1 - base])
    assert normalised_entropy(LABELS, PROBABILITIES, weight) == pytest.approx(expected, rel=1e-12)
    assert normalised_entropy(LABELS, np.full(500, base), weight) == pytest.approx(1)


@EACH_WEIGHT
def test_auc_equals_scikit_learn_with_ties(weight: np.ndarray | None) -> None:
    expected = sklearn_metrics.roc_auc_score(LABELS, PROBABILITIES, sample_weight=weight)
    assert auc(LABELS, PROBABILITIES, weight) == pytest.approx(expected, rel=1e-12)
    assert auc(LABELS, np.zeros(500), weight) == 0.5


@EACH_WEIGHT
def test_gauc_equals_the_weighted_mean_of_scikit_learn(weight: np.ndarray | None) -> None:
    total = weights = 0.0
    for group in np.unique(GROUPS):
        rows = np.flatnonzero((group == GROUPS) & (True if weight is None else weight > 0))
        if len(set(LABELS[rows])) == 2:
            group_weight = np.ones(len(rows)) if weight is None else weight[rows]
            value = sklearn_metrics.roc_auc_score(LABELS[rows], PROBABILITIES[rows], sample_weight=group_weight)
            total, weights = total + value * group_weight.sum(), weights + group_weight.sum()
    names = np.array([f"user-{group}" for group in GROUPS])
    assert gauc(LABELS, PROBABILITIES, names, weight) == pytest.approx(total / weights, rel=1e-12)


def test_gauc_leaves_out_groups_of_one_class() -> None:
    assert gauc([0, 1, 1, 1], [0.1, 0.2, 0.9, 0.8], ["a", "a", "b", "b"]) == 1.0
    assert np.isnan(gauc([1, 1, 0], [0.1, 0.2, 0.3], ["a", "a", "b"]))


@EACH_WEIGHT
def test_bernoulli_kl_equals_relative_entropy(weight: np.ndarray | None) -> None:
    teacher, student = RNG.normal(0, 3, 500), RNG.normal(0, 3, 500)
    p, q = expit(teacher), expit(student)
    expected = np.average([entropy([a, 1 - a], [b, 1 - b]) for a, b in zip(p, q, strict=True)], weights=weight)
    assert bernoulli_kl(teacher, student, weight) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bernoulli_kl_is_exact_at_extreme_logits(sign: float) -> None:
    p, q = np.exp(np.longdouble(-30)), np.exp(np.longdouble(-31))
    expected = float(p * np.log(p / q) - (p - q))  # first order of (1 - p) log((1 - p) / (1 - q))
    assert bernoulli_kl([sign * 30.0], [sign * 31.0]) == pytest.approx(expected, rel=1e-6)
    assert bernoulli_kl([sign * 800.0], [-sign * 800.0]) == pytest.approx(800.0)
    assert bernoulli_kl([sign * 5.0], [sign * 5.0]) == 0.0


@EACH_WEIGHT
def test_log_mae_equals_its_formula(weight: np.ndarray | None) -> None:
    teacher, student = RNG.normal(-3, 2, 500), RNG.normal(-3, 2, 500)
    expected = np.average(np.abs(np.log(expit(student)) - np.log(expit(teacher))), weights=weight)
    assert log_mae(teacher, student, weight) == pytest.approx(expected, rel=1e-12)
    assert log_mae([-800.0], [-801.0]) == pytest.approx(1.0)


@EACH_WEIGHT
def test_calibration_ratio_equals_its_formula(weight: np.ndarray | None) -> None:
    expected = np.average(PROBABILITIES, weights=weight) / np.average(LABELS, weights=weight)
    assert calibration_ratio(LABELS, PROBABILITIES, weight) == pytest.approx(expected, rel=1e-12)


def plain_ranking(utility: np.ndarray, order: tuple[int, ...]) -> list[int]:
    return sorted(order, key=lambda ad: -utility[ad])


def expected_over_orders(heavy: np.ndarray, light: np.ndarray, k: int, m: int) -> tuple[float, float]:
    """Recall and regret, averaged over every order that ties may take in either ranking."""
    ads, recalls, kept = range(len(heavy)), [], []
    for order in permutations(ads):
        survivors = plain_ranking(light, order)[:m]
        kept.append(sum(sorted((heavy[ad] for ad in survivors), reverse=True)[:k]))
        recalls += [len(set(plain_ranking(heavy, other)[:k]) & set(survivors)) / k for other in TIE_ORDERS[len(heavy)]]
    best = sum(sorted(heavy, reverse=True)[:k])
    return float(np.mean(recalls)), 1 - float(np.mean(kept)) / best


TIE_ORDERS = {5: list(permutations(range(5)))}


@pytest.mark.parametrize("seed", range(6))
def test_recall_and_regret_equal_the_mean_over_all_orders_of_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    heavy, light = rng.integers(1, 4, 5).astype(float), rng.integers(0, 3, 5).astype(float)
    k, m = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    recall, regret = expected_over_orders(heavy, light, k, m)
    assert recall_at(heavy, light, k, m) == pytest.approx(recall)
    assert utility_regret(heavy, light, k, m) == pytest.approx(regret)


def test_recall_and_regret_without_ties_equal_sets() -> None:
    heavy, light = RNG.permutation(1000) + 1.0, RNG.permutation(1000)
    top, survivors = set(np.argsort(-heavy)[:10]), np.argsort(-light)[:100]
    assert recall_at(heavy, light, 10, 100) == pytest.approx(len(top & set(survivors)) / 10)
    kept = np.sort(heavy[survivors])[-10:].sum()
    assert utility_regret(heavy, light, 10, 100) == pytest.approx(1 - kept / np.sort(heavy)[-10:].sum())


def test_a_constant_light_ranker_recalls_by_chance_and_few_ads_all_survive() -> None:
    heavy = RNG.random(1000)
    assert recall_at(heavy, np.zeros(1000), 10, 100) == pytest.approx(0.1)
    assert 0 < utility_regret(heavy, np.zeros(1000), 10, 100) < 0.2
    assert recall_at(heavy[:5], -heavy[:5], 10, 100) == 1.0
    assert utility_regret(heavy[:5], -heavy[:5], 10, 100) == pytest.approx(0, abs=1e-12)


def test_undefined_cases_are_nan() -> None:
    one_class = [auc([1, 1], [0.1, 0.2]), normalised_entropy([0, 0], [0.1, 0.2]), calibration_ratio([0], [0.5])]
    empty = [log_loss([], []), auc([], []), gauc([], [], []), bernoulli_kl([], []), log_mae([], [])]
    ranking = [recall_at([], [], 1, 1), utility_regret([], [], 1, 1), utility_regret([0.0], [1.0], 1, 1)]
    weightless = [log_loss([1], [0.5], [0]), auc([0, 1], [0.1, 0.2], [0, 1]), calibration_ratio([1], [0.5], [0])]
    missing = [log_loss([np.nan], [0.5]), auc([0, 1], [np.nan, 1]), recall_at([1.0], [np.nan], 1, 1)]
    assert all(np.isnan(value) for value in one_class + empty + ranking + weightless + missing)
    assert log_loss([np.nan, 1], [0.5, 0.5], [0, 1]) == pytest.approx(np.log(2))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="columns of equal length are expected"):
        log_loss([1, 0], [0.5])
    with pytest.raises(ValueError, match=r"weights must not be negative, got -1"):
        auc([1, 0], [0.5, 0.5], [1, -1])
    with pytest.raises(ValueError, match="k and m must be at least 1, got k=0, m=5"):
        recall_at([1.0], [1.0], 0, 5)
