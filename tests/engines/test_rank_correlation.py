"""Spearman's correlation equals SciPy's, ties included."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from engines.rank_correlation import rank_correlation


@pytest.mark.parametrize("decimals", [8, 1, 0], ids=["no ties", "some ties", "mostly ties"])
@pytest.mark.parametrize("rows", [2, 3, 200])
def test_equals_scipy(decimals, rows):
    rng = np.random.default_rng(rows)
    x = np.round(rng.normal(size=rows), decimals)
    y = np.round(x + rng.normal(size=rows), decimals)
    x[0], y[0] = x[1] + 1, y[1] + 1  # neither is constant
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_the_worst_column_counts():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(50, 3))
    y = x + rng.normal(size=(50, 3)) * [0.01, 1.0, 0.1]
    worst = min(spearmanr(x[:, k], y[:, k]).statistic for k in range(3))
    assert rank_correlation(x, y) == pytest.approx(worst, abs=1e-12)


def test_columns_without_an_order():
    same, rising = np.ones(4), np.arange(4.0)
    assert rank_correlation(same, rising) == 1.0
    assert rank_correlation(rising, same) == 0.0
    assert rank_correlation(np.stack([same, rising], 1), np.stack([same, -rising], 1)) == -1.0
    assert rank_correlation(np.ones(0), np.ones(0)) == 1.0
    assert rank_correlation(np.ones((1, 2)), np.zeros((1, 2))) == 1.0
    assert np.isnan(rank_correlation(rising, np.array([0, 1, np.nan, 3])))
