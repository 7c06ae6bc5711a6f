"""How a student did on each slice: metrics against the teacher and, on shown ads, against mature labels.

Shapes: N pairs, H heads.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from contracts.metrics import auc, bernoulli_kl, calibration_ratio, gauc, log_mae, normalised_entropy
from contracts.probability import sigmoid
from distill.scoring import ScoredPairs
from distill.slices import ALL, SliceColumn, slices

_BINS = 10


class SliceMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How one head did on one slice. A metric that is undefined there is NaN, null in JSON.

    Args:
        stage: ``winners``, ``candidates`` or ``eligible``.
        slice: Column that cuts the stage; ``all`` leaves it whole.
        value: Of the column.
        head: Task.
        model: ``student`` or ``teacher``: whose predictions these are.
        against: ``teacher``, whose probabilities are soft labels then, or ``labels``, mature outcomes of shown ads.
        rows: Pairs.
        requests: That these pairs belong to.
        kl: Mean Bernoulli KL from the teacher; NaN against labels.
        log_mae: Mean absolute difference of log probabilities to the teacher; NaN against labels.
        normalised_entropy: Cross entropy over that of always predicting the mean.
        auc: Over all pairs; against soft labels the expected one, if the teacher is right.
        gauc: AUC within a request, averaged over requests.
        calibration: Sum of predictions over sum of labels.
        intervals: By the name of a metric (``kl``, ``log_mae``, ``normalised_entropy``, ``auc``, ``gauc``,
            ``calibration``) the bounds of its 95 % bootstrap interval over requests; NaN where undefined.
    """

    stage: str
    slice: str
    value: str
    head: str
    model: str
    against: str
    rows: int
    requests: int
    kl: float
    log_mae: float
    normalised_entropy: float
    auc: float
    gauc: float
    calibration: float
    intervals: dict[str, tuple[float, float]] = {}


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted beside observed rates: pairs in ten bins of equal weight, by the student's prediction.

    Args:
        stage, slice, value, head, against: As in ``SliceMetrics``.
        predicted: Mean of the student's probabilities in each bin.
        observed: Mean of the labels, or of the teacher's probabilities, in each bin.
    """

    stage: str
    head: str
    against: str
    slice: str = ALL
    value: str = ALL
    predicted: list[float]
    observed: list[float]


def measure_slices(pairs: ScoredPairs, columns: Mapping[str, SliceColumn]) -> list[SliceMetrics]:
    """Metrics of every head on every slice."""
    found = []
    for part in slices(pairs.stage, columns):
        for head, task in enumerate(pairs.tasks):
            name = {"stage": part.stage, "slice": part.name, "value": part.value, "head": task}
            found.append(_against_teacher(pairs, head, part.rows, name))
            if part.stage == "winners":
                found += _against_labels(pairs, head, part.rows, name)
    return found


def reliability(pairs: ScoredPairs) -> list[Reliability]:
    """A curve for each stage and head against the teacher, and for winners against labels."""
    curves = []
    for part in slices(pairs.stage, {}):
        for head, task in enumerate(pairs.tasks):
            soft = sigmoid(pairs.teacher[part.rows, head])
            curves.append(
                _curve(pairs, head, part.rows, soft, {"stage": part.stage, "head": task, "against": "teacher"})
            )
            labels = pairs.labels[part.rows, head]
            known = ~np.isnan(labels)
            if part.stage == "winners" and known.any():
                name = {"stage": part.stage, "head": task, "against": "labels"}
                curves.append(_curve(pairs, head, part.rows[known], labels[known], name))
    return curves


def _against_teacher(pairs: ScoredPairs, head: int, rows: np.ndarray, name: dict[str, str]) -> SliceMetrics:
    teacher, student, weight = pairs.teacher[rows, head], pairs.student[rows, head], pairs.weight[rows]
    soft, predicted = sigmoid(teacher), sigmoid(student)
    return SliceMetrics(
        **name,
        model="student",
        against="teacher",
        rows=len(rows),
        requests=len(np.unique(pairs.request[rows])),
        kl=bernoulli_kl(teacher, student, weight),
        log_mae=log_mae(teacher, student, weight),
        normalised_entropy=normalised_entropy(soft, predicted, weight),
        auc=auc(soft, student, weight),
        gauc=gauc(soft, student, pairs.request[rows], weight),
        calibration=calibration_ratio(soft, predicted, weight),
    )


def _against_labels(pairs: ScoredPairs, head: int, rows: np.ndarray, name: dict[str, str]) -> list[SliceMetrics]:
    """Student and teacher on the pairs whose label is known; nothing where there are none."""
    rows = rows[~np.isnan(pairs.labels[rows, head])]
    models = {"student": pairs.student, "teacher": pairs.teacher} if len(rows) else {}
    labels, weight = pairs.labels[rows, head], pairs.weight[rows]
    return [
        SliceMetrics(
            **name,
            model=model,
            against="labels",
            rows=len(rows),
            requests=len(np.unique(pairs.request[rows])),
            kl=np.nan,
            log_mae=np.nan,
            normalised_entropy=normalised_entropy(labels, sigmoid(logits[rows, head]), weight),
            auc=auc(labels, logits[rows, head], weight),
            gauc=gauc(labels, logits[rows, head], pairs.request[rows], weight),
            calibration=calibration_ratio(labels, sigmoid(logits[rows, head]), weight),
        )
        for model, logits in models.items()
    ]


def _curve(pairs: ScoredPairs, head: int, rows: np.ndarray, labels: np.ndarray, name: dict[str, str]) -> Reliability:
    """Bins are runs of pairs sorted by prediction; a bin without weight is left out."""
    order = np.argsort(pairs.student[rows, head], kind="stable")
    weight, labels = pairs.weight[rows][order], labels[order].astype(np.float64)
    predicted = sigmoid(pairs.student[rows, head][order])
    share = np.cumsum(weight) - weight / 2
    bins = np.minimum((share / max(weight.sum(), np.finfo(float).tiny) * _BINS).astype(np.int64), _BINS - 1)
    totals = np.bincount(bins, weight, minlength=_BINS)
    sums = [np.bincount(bins, weight * values, minlength=_BINS) for values in (predicted, labels)]
    present = totals > 0
    means = [(values[present] / totals[present]).tolist() for values in sums]
    return Reliability(**name, predicted=means[0], observed=means[1])
