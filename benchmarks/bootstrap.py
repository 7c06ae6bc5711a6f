"""Paired bootstrap of AUC: how far apart two models are on the same rows, and how sure that is.

Shapes: N rows, S score columns, D draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The difference of two mean AUCs, with the interval that holds 95 % of its resamples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def resampled_aucs(labels: np.ndarray, scores: np.ndarray, *, draws: int, seed: int = 0) -> np.ndarray:
    """AUC of each score column on the rows as they are, and then on each of ``draws`` resamples of them.

    A resample draws N rows with replacement. It is the same one for every column, and for every call with the same
    labels, draws and seed: differences between columns are paired.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13, percentile interval.

    Args:
        labels: 0 or 1, [N].
        scores: [N, S].
        draws: Resamples, D.
        seed: Of the resamples.

    Returns:
        float64 [D + 1, S], the first line without resampling.

    Example:
        >>> resampled_aucs(np.array([0, 1, 1]), np.array([[0.1], [0.1], [0.7]]), draws=0).tolist()
        [[0.75]]
    """
    columns = [_SortedScores(labels, column) for column in np.asarray(scores).T]
    generator = np.random.default_rng(seed)
    count = np.ones(len(labels), np.float64)
    found = np.empty((draws + 1, len(columns)))
    for draw in range(draws + 1):
        found[draw] = [column.auc(count) for column in columns]
        count = np.bincount(generator.integers(len(labels), size=len(labels)), minlength=len(labels)).astype(np.float64)
    return found


def paired_difference(aucs: np.ndarray, ours: Sequence[int], theirs: Sequence[int]) -> Difference:
    """The mean AUC of some columns less the mean of others; several columns are the seeds of one model.

    Args:
        aucs: [D + 1, S], of :func:`resampled_aucs`.
        ours, theirs: Columns.

    Example:
        >>> round(paired_difference(np.array([[0.8, 0.7], [0.9, 0.7]]), [0], [1]).value, 3)
        0.1
    """
    differences = aucs[:, list(ours)].mean(1) - aucs[:, list(theirs)].mean(1)
    low, high = np.quantile(differences[1:], [0.025, 0.975])
    return Difference(value=float(differences[0]), low=float(low), high=float(high))


class _SortedScores:
    """One column of scores, sorted once, so that an AUC with other counts of the rows is a pass over them.

    Runs of equal scores are found once: a positive wins against every negative below its run, and half in it.
    """

    def __init__(self, labels: np.ndarray, scores: np.ndarray) -> None:
        self._order = np.argsort(scores, kind="stable")
        ordered = scores[self._order]
        self._runs = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self._positive = np.asarray(labels, np.float64)[self._order]

    def auc(self, count: np.ndarray) -> float:
        weight = count[self._order]
        positives = np.add.reduceat(weight * self._positive, self._runs)
        negatives = np.add.reduceat(weight * (1.0 - self._positive), self._runs)
        below = np.cumsum(negatives) - negatives
        wins = positives @ (below + negatives / 2.0)
        return float(wins / (positives.sum() * negatives.sum()))
