"""The reduction of KL is the ratio of means over pairs and seeds, with the same resamples on both sides."""

import numpy as np
import pytest

from benchmarks.relative_kl import RequestSums, relative_reduction, request_sums


def _student(scale: float, *, seed: int, requests: int = 60) -> RequestSums:
    generator = np.random.default_rng(seed)
    pairs = generator.integers(1, 9, requests).astype(float)
    return RequestSums(scale * generator.gamma(2.0, size=(requests, 2)) * pairs[:, None], pairs)


def test_sums_are_those_of_each_requests_pairs() -> None:
    kl = np.arange(10.0).reshape(5, 2)
    sums = request_sums(kl, np.array([4, 2, 4, 9, 2]))
    np.testing.assert_array_equal(sums.kl, [[2 + 8, 3 + 9], [0 + 4, 1 + 5], [6, 7]])
    np.testing.assert_array_equal(sums.pairs, [2, 2, 1])
    np.testing.assert_allclose(sums.mean(), kl.mean(0))


def test_a_student_of_proportional_kl_differs_by_that_ratio_in_every_resample() -> None:
    theirs = [_student(1.0, seed=seed) for seed in range(3)]
    ours = [RequestSums(0.85 * sums.kl, sums.pairs) for sums in theirs]
    found = relative_reduction(ours, theirs, draws=50)
    np.testing.assert_allclose([found.value, found.low, found.high], 0.15, atol=1e-12)


def test_the_value_is_the_ratio_of_means_over_seeds() -> None:
    ours, theirs = [_student(1.0, seed=seed) for seed in (0, 1)], [_student(1.5, seed=seed) for seed in (0, 1)]
    mean = [np.mean([(s.kl.sum() / s.pairs.sum()) for s in students]) for students in (ours, theirs)]
    assert relative_reduction(ours, theirs, draws=10).value == pytest.approx(1 - mean[0] / mean[1])


def test_the_interval_of_one_seed_is_as_wide_as_the_ratios_standard_error() -> None:
    """Against the delta method: both students' noise is independent here, so that the ratio's error is known."""
    generator = np.random.default_rng(5)
    pairs = np.ones(4_000)
    ours, theirs = (RequestSums(generator.gamma(2.0, size=(4_000, 1)) * s, pairs) for s in (1.0, 2.0))
    ratio = ours.kl.mean() / theirs.kl.mean()
    relative_errors = [sums.kl.std() / sums.kl.mean() / np.sqrt(4_000) for sums in (ours, theirs)]
    found = relative_reduction([ours], [theirs], draws=1_000)
    expected = 2 * 1.96 * ratio * np.hypot(*relative_errors)
    assert found.high - found.low == pytest.approx(expected, rel=0.15)
    assert found.low < found.value < found.high


def test_students_of_other_pairs_are_not_compared() -> None:
    with pytest.raises(ValueError, match="both students must be judged on the same pairs"):
        relative_reduction([_student(1.0, seed=0)], [_student(1.0, seed=1)])
