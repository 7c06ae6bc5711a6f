"""Spearman's rank correlation in NumPy: serving has no SciPy."""

import numpy as np


def rank_correlation(expected: np.ndarray, computed: np.ndarray) -> float:
    """How well ``computed`` keeps the order of ``expected``; the smallest over columns.

    Pearson's correlation of average ranks, so that ties count half on each side. A column whose expected values are all
    equal has no order to lose and is passed over; computed values that are all equal where the expected differ have
    lost all of it (0).

    Source: Spearman 1904, "The proof and measurement of association between two things".

    Args:
        expected: [B] or [B, K].
        computed: Of the same shape.

    Returns:
        In [-1, 1]; NaN if a computed value is; 1 if no column has an order.

    Example:
        >>> rank_correlation(np.array([0.1, 0.2, 0.9]), np.array([1.0, 3.0, 2.0]))
        0.5
    """
    if expected.size == 0:
        return 1.0
    columns = zip(_columns(expected), _columns(computed), strict=True)
    correlations = [_spearman(wanted, got) for wanted, got in columns if (wanted != wanted[:1]).any()]
    return float(np.min(correlations)) if correlations else 1.0


def _columns(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1).T


def _spearman(expected: np.ndarray, computed: np.ndarray) -> float:
    if not np.isfinite(computed).all():
        return float("nan")
    x, y = _centred_ranks(expected), _centred_ranks(computed)
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else 0.0


def _centred_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks less their mean; equal values share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return ranks[group] - (len(values) + 1) / 2
