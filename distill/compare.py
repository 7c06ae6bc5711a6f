"""Two students on the same pairs: what changed on each slice, and how sure that is.

Both are measured under the same bootstrap replicates of the requests, so that the intervals of their differences are
paired: what is hard for both does not widen them.
"""

from typing import Literal

import msgspec

Verdict = Literal["worse", "better", "unclear"]
"""``worse`` and ``better`` where the interval of the difference leaves 0 out."""


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
        rows: Differences, worst first: those that are surely worse lead, then the unclear ones, then the better ones,
            each by ``worsening``.
        recall: Differences of the curves of the student, by order, metric and survivors; empty without whole pools.
    """

    scenario: str
    log: str
    bundle: str
    against: str
    rows: list[SliceDifference]
    recall: list[RecallDifference]
