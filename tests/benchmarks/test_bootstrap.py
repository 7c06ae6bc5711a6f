"""The paired bootstrap against an AUC computed anew on the drawn rows."""

import numpy as np
import pytest

from benchmarks.bootstrap import paired_difference, resampled_aucs
from contracts.metrics import auc

ROWS, DRAWS = 200, 6


@pytest.fixture
def labels():
    return (np.random.default_rng(1).random(ROWS) < 0.3).astype(np.float64)


@pytest.fixture
def scores():
    """Three columns, the last with many ties."""
    scores = np.random.default_rng(2).random((ROWS, 3))
    scores[:, 2] = scores[:, 2].round(1)
    return scores


def test_each_draw_is_the_auc_of_the_rows_drawn(labels, scores):
    found = resampled_aucs(labels, scores, draws=DRAWS, seed=3)
    generator = np.random.default_rng(3)
    expected = [[auc(labels, column) for column in scores.T]]
    for _ in range(DRAWS):
        rows = generator.integers(ROWS, size=ROWS)
        expected.append([auc(labels[rows], column[rows]) for column in scores.T])
    np.testing.assert_allclose(found, expected)


def test_a_column_meets_the_same_draws_alone(labels, scores):
    together = resampled_aucs(labels, scores, draws=DRAWS)
    alone = resampled_aucs(labels, scores[:, 1:2], draws=DRAWS)
    np.testing.assert_array_equal(together[:, 1:2], alone)


def test_a_model_does_not_differ_from_itself(labels, scores):
    aucs = resampled_aucs(labels, scores, draws=DRAWS)
    difference = paired_difference(aucs, [0, 1], [1, 0])
    assert (difference.value, difference.low, difference.high) == (0.0, 0.0, 0.0)


def test_the_difference_is_between_mean_aucs(labels, scores):
    aucs = resampled_aucs(labels, scores, draws=DRAWS)
    difference = paired_difference(aucs, [0, 1], [2])
    assert difference.value == pytest.approx((aucs[0, 0] + aucs[0, 1]) / 2 - aucs[0, 2])
    assert difference.low <= np.median(aucs[1:, :2].mean(1) - aucs[1:, 2]) <= difference.high
