"""How a student did on each slice: metrics against the teacher and, on shown ads, against mature labels.

Shapes: N pairs, H heads, n pairs of a task, V values of a column, B replicates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from distill.metric_sums import METRICS, Judged, judge_labels, judge_teacher
from distill.replicates import MIN_REQUESTS, Replicates, draw_replicates, intervals
from distill.scoring import ScoredPairs
from distill.slices import ALL, STAGE_SLICES, SliceColumn, whole


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
            ``calibration``) the bounds of its 95 % bootstrap interval over requests; NaN where undefined, and with
            fewer than ten requests.
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


@dataclass(frozen=True)
class Measured:
    """Metrics of one head on one slice with what comparisons need.

    Args:
        metrics: As they are reported.
        replicates: float64 [B, M], each metric of ``METRICS`` under each bootstrap replicate.
        reliability: Of the student; None for the teacher's own predictions.
        mark: Sum of a random number of each pair: slices with equal marks hold exactly the same pairs.
    """

    metrics: SliceMetrics
    replicates: np.ndarray
    reliability: Reliability | None
    mark: float


def measure_slices(
    pairs: ScoredPairs, columns: Mapping[str, SliceColumn], replicates: Replicates | None = None
) -> list[Measured]:
    """Metrics of every head on every slice: each stage whole, then cut by each column.

    Args:
        pairs: All pairs of the evaluated requests.
        columns: By name, N rows each.
        replicates: Of the pairs' requests; drawn where None.
    """
    drawn = draw_replicates(pairs.request) if replicates is None else replicates
    marks = np.random.default_rng(0).random(len(pairs))
    found: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for stage, judged in _tasks(pairs, drawn):
        for name, column in ({ALL: whole(len(pairs))} | dict(columns)).items():
            by_value = found.setdefault((stage, name), {value: [] for value in column.values})
            for measured in _measure(judged, stage, name, column, marks):
                by_value[measured.metrics.value].append(measured)
    return [measured for by_value in found.values() for rows in by_value.values() for measured in rows]


def _tasks(pairs: ScoredPairs, drawn: Replicates) -> Iterator[tuple[str, Judged]]:
    """What is judged at each stage: the student against the teacher, then on winners both against known labels."""
    for stage, least in STAGE_SLICES.items():
        rows = np.flatnonzero(pairs.stage >= least)
        if not len(rows):
            continue
        for head in range(len(pairs.tasks)):
            yield stage, judge_teacher(pairs, head, rows, drawn)
            if stage != "winners":
                continue
            known = rows[~np.isnan(pairs.labels[rows, head])]
            if len(known):
                yield stage, judge_labels(pairs, head, known, drawn, model="student")
                yield stage, judge_labels(pairs, head, known, drawn, model="teacher")


def _measure(judged: Judged, stage: str, name: str, column: SliceColumn, marks: np.ndarray) -> Iterator[Measured]:
    """One task on every value of one column that has rows; ``marks`` float64 [N] are random."""
    codes = column.codes[judged.rows]
    cut = judged.cut(codes, len(column.values))
    marked = np.bincount(
        codes, marks[judged.rows]
    )  # adds in the order of rows: of the same pairs it is equal to the bit
    for code in np.flatnonzero(cut.rows).tolist():
        value, point, replicates = column.values[code], cut.point(code), cut.replicates(code)
        requests = int(cut.requests[code])
        bounds = intervals(replicates) if requests >= MIN_REQUESTS else np.full((2, len(METRICS)), np.nan)
        where: dict[str, Any] = {"stage": stage, "slice": name, "value": value}
        where |= {"head": judged.head, "against": judged.against}
        metrics = SliceMetrics(
            **where,
            model=judged.model,
            rows=int(cut.rows[code]),
            requests=requests,
            **dict(zip(METRICS, point.tolist(), strict=True)),
            intervals={metric: (float(low), float(high)) for metric, low, high in zip(METRICS, *bounds, strict=True)},
        )
        curve = None
        if judged.model == "student":
            predicted, observed = cut.reliability(code)
            curve = Reliability(**where, predicted=predicted, observed=observed)
        yield Measured(metrics, replicates, curve, float(marked[code]))
