"""Two students on the same pairs: what changed on each slice, and how sure that is.

Both are measured under the same bootstrap replicates of the requests, so that the intervals of their differences are
paired: what is hard for both does not widen them.

Shapes: B replicates, M metrics, P pools.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from contracts.errors import WrongArtifactError
from distill.measures import Measured
from distill.metric_sums import METRICS
from distill.recall import STUDENT, PoolCurves, mean_over_pools
from distill.replicates import MIN_REQUESTS, intervals

if TYPE_CHECKING:
    from distill.evaluate import Assessment

Verdict = Literal["worse", "better", "unclear"]
"""``worse`` and ``better`` where the 95 % interval of the difference leaves 0 out. Of figures that did not change about
one in forty is called worse by chance: among many slices look at how much worse, and whether neighbours agree.
"""

_VERDICTS: tuple[Verdict, ...] = ("worse", "unclear", "better")
ROUNDING = 1e-12
"""Differences as small are of the order of additions, not of students."""

_HIGHER_IS_BETTER = frozenset({"auc", "gauc", "recall"})
_POOL_METRICS = ("recall", "utility_lost", "regret")


class SliceDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one head on one slice, for both students.

    Args:
        stage, slice, value, head, against, rows, requests: As in ``SliceMetrics``.
        metric: ``kl``, ``log_mae``, ``normalised_entropy``, ``auc``, ``gauc`` or ``calibration``.
        before, after: Of the earlier and of the later student.
        difference: ``after - before``; of calibration ``|ln after| - |ln before|``, its distance from 1.
        low, high: 95 % paired bootstrap interval of the difference over requests; NaN where undefined.
        worsening: The share that got worse, negative where better: of KL, LogMAE and entropy relative to before; of
            AUC and GAUC relative to ``1 - before``, the pairs in wrong order; of calibration the difference itself.
        verdict: ``worse``, ``better`` or ``unclear``.
    """

    stage: str
    slice: str
    value: str
    head: str
    against: str
    rows: int
    requests: int
    metric: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    worsening: float
    verdict: Verdict


class RecallDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Recall, utility lost or regret of both students at one number of survivors.

    Args:
        order, survivors: As in ``RecallReport``.
        metric: ``recall``, ``utility_lost`` or ``regret``.
        before, after: Of the earlier and of the later student.
        difference: ``after - before``.
        low, high: 95 % paired bootstrap interval of the difference over requests; NaN where undefined.
        verdict: ``worse``, ``better`` or ``unclear``.
    """

    order: str
    survivors: int
    metric: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    verdict: Verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A later student against an earlier one, on the same pairs of the same log.

    Args:
        scenario: Of both.
        log: Directory that both were judged on.
        bundle: The later student's version.
        against: The earlier student's version.
        rows: Differences, worst first: those with the verdict ``worse`` lead, then the unclear ones, then the better
            ones, each by ``worsening``. A slice that holds exactly the pairs of its whole stage or of an earlier slice
            is left out.
        recall: Differences of the curves of the student, by order, metric and survivors; empty without whole pools.
    """

    scenario: str
    log: str
    bundle: str
    against: str
    rows: list[SliceDifference]
    recall: list[RecallDifference]


def compare(before: "Assessment", after: "Assessment") -> Comparison:
    """What changed from one student to another on every slice that both have, and on whole pools.

    Args:
        before, after: Assessed on the same pairs, under the same replicates.

    Raises:
        WrongArtifactError: They were assessed on other pairs, or with other teachers.
    """
    first, second = before.evaluation, after.evaluation
    for name in ("scenario", "log", "teacher_version", "pairs", "first", "last"):
        old, new = getattr(first, name), getattr(second, name)
        if old != new:
            raise WrongArtifactError(
                f"{second.bundle} cannot be compared with {first.bundle}: {name} is {new}, there {old}; "
                "both must be judged on the same pairs"
            )
    students = {_key(one): one for one in before.measured if one.metrics.model == "student"}
    shared = _distinct(one for one in after.measured if one.metrics.model == "student" and _key(one) in students)
    rows = [row for one in shared for row in _differences(students[_key(one)], one)]
    return Comparison(
        scenario=second.scenario,
        log=second.log,
        bundle=second.bundle,
        against=first.bundle,
        rows=sorted(rows, key=lambda row: (_VERDICTS.index(row.verdict), -row.worsening)),
        recall=list(_recall(before.pools, after.pools)) if before.pools and after.pools else [],
    )


def _key(one: Measured) -> tuple[str | int, ...]:
    """What names a slice; its rows too, since days that trained one student may be unseen by the other."""
    found = one.metrics
    return found.stage, found.slice, found.value, found.head, found.against, found.rows


def _distinct(measured: Iterable[Measured]) -> Iterator[Measured]:
    """Each set of pairs once, under the first of its names: else one finding would count several times."""
    seen = set()
    for one in measured:
        found = one.metrics
        held = found.stage, found.head, found.against, found.rows, one.mark
        if held not in seen:
            seen.add(held)
            yield one


def _differences(before: Measured, after: Measured) -> Iterator[SliceDifference]:
    """The metrics that both have."""
    found = after.metrics
    bounds = _bounds(_loss_scale(after.replicates) - _loss_scale(before.replicates), found.requests)
    for place, metric in enumerate(METRICS):
        old, new = getattr(before.metrics, metric), getattr(found, metric)
        if np.isnan(old) or np.isnan(new):
            continue
        low, high = (float(bound) for bound in bounds[:, place])
        if metric == "calibration":
            with np.errstate(divide="ignore"):
                difference = float(abs(np.log(new)) - abs(np.log(old)))
        else:
            difference = new - old
        yield SliceDifference(
            **{name: getattr(found, name) for name in ("stage", "slice", "value", "head", "against")},
            rows=found.rows,
            requests=found.requests,
            metric=metric,
            before=old,
            after=new,
            difference=difference,
            low=low,
            high=high,
            worsening=_worsening(metric, old, difference),
            verdict=_verdict(metric, low, high),
        )


def _loss_scale(replicates: np.ndarray) -> np.ndarray:
    """Replicates [B, M] with calibration as its distance from 1, ``|ln|``."""
    found, place = replicates.copy(), METRICS.index("calibration")
    with np.errstate(divide="ignore"):
        found[:, place] = np.abs(np.log(found[:, place]))
    return found


def _bounds(differences: np.ndarray, requests: int) -> np.ndarray:
    """Interval [2, M] of differences [B, M]."""
    return intervals(differences) if requests >= MIN_REQUESTS else np.full((2, differences.shape[1]), np.nan)


def _worsening(metric: str, before: float, difference: float) -> float:
    """The share that got worse; a metric that was perfect has no share, and its difference stands for it."""
    if metric == "calibration":
        return difference
    worse, scale = (-difference, 1.0 - before) if metric in _HIGHER_IS_BETTER else (difference, before)
    return worse / scale if scale > 0 else worse


def _verdict(metric: str, low: float, high: float) -> Verdict:
    if not (low > ROUNDING or high < -ROUNDING):
        return "unclear"
    return "better" if (low > 0) == (metric in _HIGHER_IS_BETTER) else "worse"


def _recall(before: PoolCurves, after: PoolCurves) -> Iterator[RecallDifference]:
    """Differences of the students' curves over the pools that both were measured on."""
    if not np.array_equal(before.requests, after.requests) or before.report.survivors != after.report.survivors:
        return
    for (order, ranking), new in after.points.items():
        old = before.points.get((order, ranking))
        if ranking != STUDENT or old is None:
            continue
        for place, metric in enumerate(_POOL_METRICS):
            mean, (low, high) = mean_over_pools(new[:, place] - old[:, place])
            means = [mean_over_pools(points[:, place])[0] for points in (old, new)]
            for point, survivors in enumerate(after.report.survivors):
                if np.isnan(mean[point]):
                    continue
                yield RecallDifference(
                    order=order,
                    survivors=survivors,
                    metric=metric,
                    before=float(means[0][point]),
                    after=float(means[1][point]),
                    difference=float(mean[point]),
                    low=float(low[point]),
                    high=float(high[point]),
                    verdict=_verdict(metric, float(low[point]), float(high[point])),
                )
