"""Per-request sums from which the metrics of a slice follow, under any bootstrap weights of the requests.

Most metrics are a function of sums over requests, so that a replicate costs one product with its counts. AUC compares
pairs of different requests; its replicates follow from the influence of each request (ranked_sums.py).

Shapes: n pairs of a task, U units of the bootstrap, V values of a column, B replicates, M metrics, K sums.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from contracts.metrics import cross_entropies, divergences, log_differences
from contracts.probability import sigmoid
from distill.ranked_sums import grouped_auc
from distill.replicates import Replicates
from distill.scoring import ScoredPairs

METRICS = ("kl", "log_mae", "normalised_entropy", "auc", "gauc", "calibration")
"""In the order of every array of metrics, M."""

_WEIGHT, _LABEL, _PREDICTED, _CROSS_ENTROPY, _KL, _LOG_MAE, _GAUC, _GAUC_WEIGHT, _INFLUENCE = range(9)
_NUM_SUMS = 9
_BINS = 10


@dataclass(frozen=True)
class Cut:
    """A task cut by the values of a column.

    Args:
        rows: int [V], pairs of each value.
        requests: int [V], requests of these pairs.
        sums: float64 [V, U, K], by unit.
        present: bool [V, U], units that have pairs of a value.
        auc: float64 [V].
        bins: float64 [V, 10, 3], weight, predictions and labels summed in bins by prediction.
        drawn: Bootstrap.
    """

    rows: np.ndarray
    requests: np.ndarray
    sums: np.ndarray
    present: np.ndarray
    auc: np.ndarray
    bins: np.ndarray
    drawn: Replicates

    def point(self, code: int) -> np.ndarray:
        """The metrics of a value, float64 [M]."""
        return _metrics(self._total(code)[None], self._total(code), self.auc[code])[0]

    def replicates(self, code: int) -> np.ndarray:
        """The metrics of a value under each replicate, float64 [B, M]."""
        units = np.flatnonzero(self.present[code])
        return _metrics(self.drawn.sums(units, self.sums[code, units]), self._total(code), self.auc[code])

    def _total(self, code: int) -> np.ndarray:
        """float64 [K], over all units once."""
        return self.sums[code].sum(axis=0)

    def reliability(self, code: int) -> tuple[list[float], list[float]]:
        """Mean prediction and mean label of each bin that has weight."""
        weight, predicted, labels = self.bins[code].T
        filled = weight > 0
        return (predicted[filled] / weight[filled]).tolist(), (labels[filled] / weight[filled]).tolist()


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Predictions of one head on some pairs, and what they are judged against.

    Args:
        head, model, against: As in ``SliceMetrics``.
        rows: int [n], positions of the pairs.
        request: int32 [n].
        unit: int32 [n], of the bootstrap.
        score: float64 [n] logits.
        label: float64 [n] in [0, 1].
        weight: float64 [n].
        kl, log_mae: float64 [n]; None against labels.
        drawn: Bootstrap.
    """

    head: str
    model: str
    against: str
    rows: np.ndarray
    request: np.ndarray
    unit: np.ndarray
    score: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    kl: np.ndarray | None
    log_mae: np.ndarray | None
    drawn: Replicates

    def cut(self, codes: np.ndarray, num_values: int) -> Cut:
        """Sums by value and unit.

        Args:
            codes: int [n], the value of each pair.
            num_values: V.
        """
        shape = (num_values, self.drawn.num_units)
        cell = codes * shape[1] + self.unit
        counts = np.bincount(cell, minlength=shape[0] * shape[1])
        sums = np.zeros((*shape, _NUM_SUMS))
        for place, values in enumerate(self._additive):
            sums[..., place] = np.bincount(cell, values, counts.size).reshape(shape)
        requests = self._add_gauc(sums, codes)
        auc, bins = self._add_auc(sums, codes)
        if self.kl is None:
            sums[..., [_KL, _LOG_MAE]] = np.nan
        rows = np.bincount(codes, minlength=num_values)
        return Cut(rows, requests, sums, counts.reshape(shape) > 0, auc, bins, self.drawn)

    @cached_property
    def _additive(self) -> list[np.ndarray]:
        """What is summed over pairs, in the order of the sums; a row without weight says nothing, whatever it holds."""
        weight, predicted = self.weight, sigmoid(self.score)
        values = [self.label, predicted, cross_entropies(self.label, predicted)]
        if self.kl is not None and self.log_mae is not None:
            values += [self.kl, self.log_mae]
        return [weight, *(np.where(weight > 0, weight * column, 0.0) for column in values)]

    @cached_property
    def _by_score(self) -> np.ndarray:
        return np.argsort(self.score, kind="stable")

    @cached_property
    def _by_request(self) -> np.ndarray:
        """Order by request, then score."""
        by_score = self._by_score
        return by_score[np.argsort(self.request[by_score], kind="stable")]

    def _add_gauc(self, sums: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Add the weighted AUC of each request, and its weight where defined; return the requests of each value."""
        order = _split(self._by_request, codes)
        request, code = self.request[order], codes[order]
        first = np.flatnonzero(np.r_[True, (code[1:] != code[:-1]) | (request[1:] != request[:-1])])
        group = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(order)]))
        found = grouped_auc(group, self.score[order], self.label[order], self.weight[order])
        defined = ~np.isnan(found.value)
        cell = (code[first] * sums.shape[1] + self.unit[order[first]])[defined]
        for place, values in ((_GAUC, found.value * found.weight), (_GAUC_WEIGHT, found.weight)):
            sums[..., place] = np.bincount(cell, values[defined], sums.shape[0] * sums.shape[1]).reshape(sums.shape[:2])
        return np.bincount(code[first], minlength=len(sums))

    def _add_auc(self, sums: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add the influence on each value's AUC; return the AUC [V] and the sums of its bins [V, 10, 3]."""
        order = _split(self._by_score, codes)
        code, label, weight = codes[order], self.label[order], self.weight[order]
        found = grouped_auc(code, self.score[order], label, weight)
        cell = code * sums.shape[1] + self.unit[order]
        sums[..., _INFLUENCE] = np.bincount(cell, found.influence, sums.shape[0] * sums.shape[1]).reshape(
            sums.shape[:2]
        )
        auc = np.full(len(sums), np.nan)
        auc[np.unique(code)] = found.value
        labels, predictions = (self._additive[place][order] for place in (_LABEL, _PREDICTED))
        return auc, _bins(code, weight, predictions, labels, len(sums))


def judge_teacher(pairs: ScoredPairs, head: int, rows: np.ndarray, drawn: Replicates) -> Judged:
    """The student's head against the teacher's probabilities."""
    teacher, student = pairs.teacher[rows, head], pairs.student[rows, head]
    return Judged(
        head=pairs.tasks[head],
        model="student",
        against="teacher",
        rows=rows,
        request=pairs.request[rows],
        unit=drawn.unit[rows],
        score=student,
        label=sigmoid(teacher),
        weight=pairs.weight[rows],
        kl=divergences(teacher, student),
        log_mae=log_differences(teacher, student),
        drawn=drawn,
    )


def judge_labels(pairs: ScoredPairs, head: int, rows: np.ndarray, drawn: Replicates, *, model: str) -> Judged:
    """A model's head, the student's or the teacher's, against labels, which are known for all the rows."""
    logits = pairs.student if model == "student" else pairs.teacher
    return Judged(
        head=pairs.tasks[head],
        model=model,
        against="labels",
        rows=rows,
        request=pairs.request[rows],
        unit=drawn.unit[rows],
        score=logits[rows, head],
        label=pairs.labels[rows, head].astype(np.float64),
        weight=pairs.weight[rows],
        kl=None,
        log_mae=None,
        drawn=drawn,
    )


def _metrics(sums: np.ndarray, whole: np.ndarray, auc: float) -> np.ndarray:
    """Metrics [B, M] from sums [B, K]; a replicate that drew nothing of a slice has none.

    Args:
        whole: float64 [K], the sums without resampling, whose AUC is ``auc``.
    """
    total = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / total[_WEIGHT]
        base = mean[_LABEL]
        mixed = (base > 0) & (base < 1)
        entropy = cross_entropies(base, base)
        found = np.stack(
            [
                mean[_KL],
                mean[_LOG_MAE],
                np.where(mixed, mean[_CROSS_ENTROPY] / entropy, np.nan),
                np.clip(auc + total[_INFLUENCE] * _compared(whole) / _compared(total), 0.0, 1.0),
                total[_GAUC] / total[_GAUC_WEIGHT],
                np.where(base > 0, mean[_PREDICTED] / base, np.nan),
            ],
            axis=1,
        )
    found[np.isnan(mean[_PREDICTED])] = np.nan  # a prediction that is no number has no rank either
    return found


def _compared(total: np.ndarray) -> np.ndarray:
    """Weight of all pairs of a positive and a negative: to it a sum over such pairs, as AUC is, is relative."""
    return total[_LABEL] * (total[_WEIGHT] - total[_LABEL])


def _bins(code: np.ndarray, weight: np.ndarray, predicted: np.ndarray, label: np.ndarray, values: int) -> np.ndarray:
    """Sums [V, 10, 3] over bins of equal weight; rows come by code and prediction, the last two weighted."""
    totals = np.bincount(code, weight, values)
    before = np.cumsum(weight) - weight / 2
    share = (before - np.r_[0.0, np.cumsum(totals)][code]) / np.maximum(totals, np.finfo(float).tiny)[code]
    place = code * _BINS + np.clip((share * _BINS).astype(np.int64), 0, _BINS - 1)
    sums = [np.bincount(place, part, values * _BINS) for part in (weight, predicted, label)]
    return np.stack(sums, axis=1).reshape(values, _BINS, 3)


def _split(order: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The same order within each code, code by code; sorting 16-bit codes takes one pass."""
    return order[np.argsort(codes[order].astype(np.int16), kind="stable")]
