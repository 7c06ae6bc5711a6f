"""AUC within many groups at once, and what each row adds to it.

    AUC = sum_ij w_i y_i w_j (1 - y_j) [s_i > s_j] / sum_ij w_i y_i w_j (1 - y_j),  i != j,  ties counting half

Labels y may be soft: a row is then partly a positive and partly a negative, and is not compared with itself.

To first order bootstrap weights v_r of the rows of each request r change the AUC by ``sum_r (v_r - 1) g_r``, where g_r
is its derivative with respect to v_r: one pass gives the AUC of every replicate, in place of a pass for each.

Source of the derivative: Efron 1982, "The Jackknife, the Bootstrap and Other Resampling Plans", chapter 6
(infinitesimal jackknife).

Shapes: n rows, G groups.
"""

from dataclasses import dataclass

import numpy as np

_ROUNDING = 1e-12


@dataclass(frozen=True)
class GroupedAuc:
    """AUC of each group.

    Args:
        value: float64 [G], NaN where a group has one class only.
        weight: float64 [G], of all its rows.
        influence: float64 [n], derivative of the group's AUC with respect to a factor on each row's weight; 0 where
            the AUC is undefined. Over a group they add up to 0.
    """

    value: np.ndarray
    weight: np.ndarray
    influence: np.ndarray


def grouped_auc(group: np.ndarray, score: np.ndarray, label: np.ndarray, weight: np.ndarray) -> GroupedAuc:
    """AUC within each run of equal groups.

    Args:
        group: int [n], ascending.
        score: float64 [n], ascending within a group.
        label: float64 [n] in [0, 1].
        weight: float64 [n], not negative.
    """
    if not len(group):
        return GroupedAuc(*(np.zeros(0) for _ in range(3)))
    new_group = np.r_[True, group[1:] != group[:-1]]
    group_start, group_of = np.flatnonzero(new_group), np.cumsum(new_group) - 1
    positive, negative = weight * label, weight * (1.0 - label)
    positives, negatives = np.add.reduceat(positive, group_start), np.add.reduceat(negative, group_start)
    itself = positive * negative
    new_run = new_group | np.r_[True, score[1:] != score[:-1]]
    negative_below, positive_below = _below(new_run, group_start, group_of, positive, negative)
    # each comparison has two ends: wins counted from the positive's and from the negative's side
    ends = positive * negative_below + negative * (positives[group_of] - positive_below) - itself
    wins = np.add.reduceat(positive * negative_below - itself / 2, group_start)
    all_pairs = positives * negatives
    pairs = all_pairs - np.add.reduceat(itself, group_start)
    defined = pairs > _ROUNDING * all_pairs
    value = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=defined)
    slope = positive * negatives[group_of] + positives[group_of] * negative - 2 * itself
    scale = np.divide(1.0, pairs, out=np.zeros(len(pairs)), where=defined)
    influence = (ends - np.nan_to_num(value)[group_of] * slope) * scale[group_of]
    return GroupedAuc(value, positives + negatives, influence)


def _below(
    new_run: np.ndarray, group_start: np.ndarray, group_of: np.ndarray, positive: np.ndarray, negative: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each row the negative weight below it and the positive weight below it, each with half of what it ties."""
    below = [_before(values, group_start, group_of) for values in (negative, positive)]
    if new_run.all():
        return below[0] + negative / 2, below[1] + positive / 2
    run_start, run_of = np.flatnonzero(new_run), np.cumsum(new_run) - 1
    tied = [np.add.reduceat(values, run_start) for values in (negative, positive)]
    return below[0][run_start][run_of] + tied[0][run_of] / 2, below[1][run_start][run_of] + tied[1][run_of] / 2


def _before(values: np.ndarray, group_start: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """Sum of what comes before each row in its group."""
    before = np.cumsum(values) - values
    return before - before[group_start][group_of]
