"""Metrics of probabilities and of rankings, in NumPy and float64.

Every function takes columns of equal length [B] and returns a float. Where a metric is undefined (no rows, no weight, a
NaN in a row that has weight, or a case that its docstring names) it returns NaN and guesses nothing. Weights are not
negative. Ties never count for or against a ranking: a tied order stands for all its permutations, and the expectation
is returned.
"""

import numpy as np
from numpy.typing import ArrayLike

NAN = float("nan")
_TINY = np.finfo(np.float64).eps
_ROUNDING = 1e-12


def log_loss(labels: ArrayLike, probabilities: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Mean of ``-y log p - (1 - y) log(1 - p)``; probabilities are kept 2.2e-16 from 0 and 1. Labels may be soft.

    Example:
        >>> round(log_loss([1, 0], [0.5, 0.5]), 4)
        0.6931
    """
    (y, p), weight = _columns(labels, probabilities, sample_weight=sample_weight)
    return _mean(cross_entropies(y, p), weight)


def normalised_entropy(labels: ArrayLike, probabilities: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Log loss over that of always predicting the mean label: below 1 is better than the mean. NaN with one class only.

    Source: He et al. 2014, "Practical Lessons from Predicting Clicks on Ads at Facebook".
    """
    (y, p), weight = _columns(labels, probabilities, sample_weight=sample_weight)
    base = _mean(y, weight)
    if not 0.0 < base < 1.0:
        return NAN
    return _mean(cross_entropies(y, p), weight) / _mean(cross_entropies(y, np.full_like(y, base)), weight)


def auc(labels: ArrayLike, scores: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Probability that a positive scores above a negative, ties counting half. NaN with one class only.

    Args:
        labels: 0 or 1, or between: such a row is partly a positive and partly a negative, of which the parts of other
            rows are compared with it, never its own.

    Example:
        >>> auc([0, 1, 1], [0.1, 0.1, 0.7])
        0.75
    """
    values, _ = _grouped_auc(labels, scores, None, sample_weight)
    return float(values[0]) if len(values) else NAN


def gauc(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """AUC within each group, averaged by the groups' weight. Groups of one class are left out; NaN where all are.

    Source: Zhou et al. 2018, "Deep Interest Network", arXiv:1706.06978, section 5.2.

    Args:
        groups: What a row belongs to, such as the user or the request.
    """
    values, weights = _grouped_auc(labels, scores, groups, sample_weight)
    defined = ~np.isnan(values)
    return _mean(values[defined], weights[defined])


def bernoulli_kl(teacher_logits: ArrayLike, student_logits: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Mean of KL(teacher || student) between Bernoulli distributions, from their logits: see :func:`divergences`.

    Example:
        >>> bernoulli_kl([0.0], [0.0])
        0.0
    """
    (teacher, student), weight = _columns(teacher_logits, student_logits, sample_weight=sample_weight)
    return _mean(divergences(teacher, student), weight)


def log_mae(teacher_logits: ArrayLike, student_logits: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Mean of ``|log p_student - log p_teacher|``, from logits: a relative error, whatever the level of the rates."""
    (teacher, student), weight = _columns(teacher_logits, student_logits, sample_weight=sample_weight)
    return _mean(log_differences(teacher, student), weight)


def calibration_ratio(labels: ArrayLike, probabilities: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Sum of predictions over sum of labels: 1 is calibrated, above 1 over-predicts. NaN without a positive label.

    Labels may be soft: the teacher's probabilities give the ratio of student to teacher.
    """
    (y, p), weight = _columns(labels, probabilities, sample_weight=sample_weight)
    base = _mean(y, weight)
    return _mean(p, weight) / base if base > 0 else NAN


def cross_entropies(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """``-y log p - (1 - y) log(1 - p)`` of each row; probabilities are kept 2.2e-16 from 0 and 1."""
    p = np.clip(probabilities, _TINY, 1 - _TINY)
    return -labels * np.log(p) - (1 - labels) * np.log1p(-p)


def divergences(teacher_logits: np.ndarray, student_logits: np.ndarray) -> np.ndarray:
    """Bernoulli KL(teacher || student) of each row, from logits t and s.

    ``sigmoid(t) (t - s) + softplus(s) - softplus(t)``. KL(t || s) equals KL(-t || -s), so the sign in which the
    teacher's probability is at most a half is used: nothing large cancels.
    """
    sign = np.where(teacher_logits > 0, -1.0, 1.0)
    t, s = sign * teacher_logits, sign * student_logits
    return np.maximum(np.exp(_log_sigmoid(t)) * (t - s) + _softplus(s) - _softplus(t), 0.0)


def log_differences(teacher_logits: np.ndarray, student_logits: np.ndarray) -> np.ndarray:
    """``|log p_student - log p_teacher|`` of each row, from logits."""
    return np.abs(_log_sigmoid(student_logits) - _log_sigmoid(teacher_logits))


def recall_at(heavy_utility: ArrayLike, light_utility: ArrayLike, k: int, m: int) -> float:
    """Share of the heavy ranker's top k ads of one request that are in the light ranker's top m.

    Args:
        heavy_utility: Utility by the heavy ranker [C].
        light_utility: Utility by the light ranker [C].
        k, m: At least 1; each counts as C where it is larger.

    Example:
        >>> recall_at([9, 8, 1, 2], [5, 1, 1, 1], k=2, m=2)
        0.6666666666666666
    """
    (heavy, light), _ = _columns(heavy_utility, light_utility)
    k, m = _cuts(len(heavy), k, m)
    if _undefined(heavy, light):
        return NAN
    return float(_share_in_top(heavy, k) @ _share_in_top(light, m) / k)


def utility_regret(heavy_utility: ArrayLike, light_utility: ArrayLike, k: int, m: int) -> float:
    """Share of the best k ads' heavy utility that is lost by choosing among the light top m, in one request.

    ``1 - sum(best k of the top m) / sum(best k of all)``. NaN where the latter is not positive.

    Args:
        heavy_utility: Utility by the heavy ranker [C], not negative.
        light_utility: Utility by the light ranker [C].
        k, m: At least 1; each counts as C where it is larger.
    """
    (heavy, light), _ = _columns(heavy_utility, light_utility)
    k, m = _cuts(len(heavy), k, m)
    if _undefined(heavy, light):
        return NAN
    best = np.sort(heavy)[-k:].sum()
    if not best > 0:
        return NAN
    return float(1.0 - heavy @ chance_chosen(heavy, light, k, m) / best)


def chance_chosen(heavy_utility: np.ndarray, light_utility: np.ndarray, k: int, m: int) -> np.ndarray:
    """The chance [C] that each ad is among the heavy top k of the light top m, in one request.

    Ads that the light ranker ties survive at random; of those that the heavy ranker ties the first are chosen.

    Args:
        heavy_utility: Utility by the heavy ranker [C].
        light_utility: Utility by the light ranker [C].
        k, m: At least 1 and at most C.

    Example:
        >>> chance_chosen(np.array([9.0, 8.0, 1.0]), np.array([0.0, 0.0, 2.0]), k=1, m=2).tolist()
        [0.5, 0.5, 0.0]
    """
    order = np.argsort(-heavy_utility, kind="stable")
    chance = np.empty(len(order))
    chance[order] = _chance_among_best(light_utility[order], k, m)
    return chance


def _columns(*columns: ArrayLike, sample_weight: ArrayLike | None = None) -> tuple[list[np.ndarray], np.ndarray]:
    arrays = [np.asarray(column, np.float64) for column in columns]
    weight = np.ones(arrays[0].shape) if sample_weight is None else np.asarray(sample_weight, np.float64)
    shapes = [array.shape for array in (*arrays, weight)]
    if arrays[0].ndim != 1 or len(set(shapes)) > 1:
        raise ValueError(f"columns of equal length are expected, got shapes {shapes}")
    if (weight < 0).any():
        raise ValueError(f"weights must not be negative, got {weight.min()}")
    weighted = weight != 0
    return [array[weighted] for array in arrays], weight[weighted]


def _undefined(*columns: np.ndarray) -> bool:
    return not len(columns[0]) or any(np.isnan(column).any() for column in columns)


def _mean(values: np.ndarray, weight: np.ndarray) -> float:
    return float(values @ weight / weight.sum()) if len(values) else NAN


def _softplus(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of NaN it is NaN
        return np.logaddexp(0.0, x)


def _log_sigmoid(x: np.ndarray) -> np.ndarray:
    return -_softplus(-x)


def _grouped_auc(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike | None, sample_weight: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the AUC [G] (NaN with one class) and the weight [G] of each group.

    Sorted by group and score, each run of equal scores adds its positive weight times the negative weight below it and
    half of that beside it; what a row with a soft label would add by comparing itself with itself is taken off.
    """
    ids = np.zeros(np.shape(labels)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    (y, score, group), weight = _columns(labels, scores, ids, sample_weight=sample_weight)
    if _undefined(y, score):
        return np.full(1, NAN), np.ones(1)
    order = np.lexsort((score, group))
    y, score, group, weight = y[order], score[order], group[order], weight[order]
    run_start = np.flatnonzero(np.r_[True, (np.diff(score) != 0) | (np.diff(group) != 0)])
    itself = weight * y * (weight * (1 - y))
    positive, negative = (np.add.reduceat(part, run_start) for part in (weight * y, weight * (1 - y)))
    group_start = np.flatnonzero(np.r_[True, np.diff(group[run_start]) != 0])
    below = _running_sum_within(negative, group_start)
    itself = np.add.reduceat(np.add.reduceat(itself, run_start), group_start)
    wins = np.add.reduceat(positive * (below + negative / 2), group_start) - itself / 2
    positives, negatives = np.add.reduceat(positive, group_start), np.add.reduceat(negative, group_start)
    pairs = positives * negatives - itself
    defined = pairs > _ROUNDING * positives * negatives
    return np.divide(wins, pairs, out=np.full(len(pairs), NAN), where=defined), positives + negatives


def _running_sum_within(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sum of what comes before each value in its group; groups begin at ``starts``."""
    before = np.cumsum(values) - values
    lengths = np.diff(np.r_[starts, len(values)])
    return before - np.repeat(before[starts], lengths)


def _cuts(num_ads: int, k: int, m: int) -> tuple[int, int]:
    if k < 1 or m < 1:
        raise ValueError(f"k and m must be at least 1, got k={k}, m={m}")
    return min(k, num_ads), min(m, num_ads)


def _share_in_top(utility: np.ndarray, count: int) -> np.ndarray:
    """Return the chance [C] that each ad is among the first ``count`` when ties are broken at random."""
    cut = np.partition(utility, len(utility) - count)[len(utility) - count]
    above, tied = utility > cut, utility == cut
    return above + tied * ((count - above.sum()) / tied.sum())


def _chance_among_best(light: np.ndarray, k: int, m: int) -> np.ndarray:
    """Return the chance [C] that each ad survives and fewer than k survivors beat it. Ads are sorted by heavy utility.

    Of the ads tied at the light cut a random subset survives, so the number of better survivors among them follows a
    hypergeometric distribution.
    """
    share = _share_in_top(light, m)
    certain, tied = share == 1.0, (share > 0.0) & (share < 1.0)
    drawn, others = m - certain.sum(), tied.sum() - tied
    certain_before: np.ndarray = np.cumsum(certain) - certain
    tied_before: np.ndarray = np.cumsum(tied) - tied
    room = k - 1 - certain_before
    return share * _hypergeometric_cdf(room, others, tied_before, drawn - tied)


def _hypergeometric_cdf(most: np.ndarray, population: np.ndarray, marked: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return P(at most ``most`` marked) when ``drawn`` of ``population`` are drawn, none twice; each [C]."""
    log_factorial = np.r_[0.0, np.cumsum(np.log(np.arange(1, population.max(initial=0) + 2)))]

    def log_choose(n: np.ndarray, r: np.ndarray) -> np.ndarray:
        possible = (r >= 0) & (r <= n) & (n >= 0)
        n, r = np.where(possible, n, 0), np.where(possible, r, 0)
        return np.where(possible, log_factorial[n] - log_factorial[r] - log_factorial[n - r], -np.inf)

    found = np.arange(max(most.max(initial=0), 0) + 1)
    n, a, d = population[:, None], marked[:, None], np.maximum(drawn, 0)[:, None]
    log_chance = log_choose(a, found) + log_choose(n - a, d - found) - log_choose(n, d)
    return np.where(found <= most[:, None], np.exp(log_chance), 0.0).sum(1)
