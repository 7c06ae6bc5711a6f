"""What the launch gate found, as ``gate.json`` of a bundle keeps it."""

import msgspec

from distill.gate_limits import Limits
from distill.slices import ALL

GATE_FILE = "gate.json"
POOLS = "whole pools"
"""Stands for the stage where recall is judged."""

_EXCESS = {"kl": "a relative rise of", "calibration": "off by a factor of 1 plus"}


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure beyond its limit.

    Args:
        limit: Name of the field of ``Limits``.
        allowed: Its value.
        stage, slice, value, head, against: As in ``SliceMetrics``; of recall the stage is ``whole pools``, and the
            order of ranking stands for the head.
        metric: ``kl``, ``auc``, ``gauc``, ``calibration``, ``normalised_entropy`` or ``recall``.
        rows: Pairs of the slice; None of recall.
        requests: Of the slice.
        before: Of the student that serves; None of a floor.
        after: Of this student.
        excess: What is held against the limit: the relative rise of KL, the fall of AUC, GAUC or recall, how far
            calibration is off; of a floor the figure itself.
        low, high: Interval of the difference, widened, or of the figure where it missed a floor.
    """

    limit: str
    allowed: float
    stage: str
    slice: str
    value: str
    head: str
    against: str
    metric: str
    rows: int | None
    requests: int
    before: float | None
    after: float
    excess: float
    low: float
    high: float

    def line(self) -> str:
        """For people."""
        where = self.stage if self.slice == ALL else f"{self.stage}, {self.slice} {self.value}"
        size = f"{self.requests:,} requests" if self.rows is None else f"{self.rows:,} rows, {self.requests:,} requests"
        figure = f"{where}: {self.metric} of {self.head} against {self.against}"
        bounds = f"{self.low:.4g} to {self.high:.4g}"
        allowed = f"{self.limit} allows {self.allowed:.4g} ({size})"
        if self.before is None:
            return f"{figure} is {self.after:.4g}, {bounds}; {allowed}"
        excess = f"{_EXCESS.get(self.metric, 'lower by')} {self.excess:.4g}"
        return f"{figure} {self.before:.4g} -> {self.after:.4g}, {excess}, difference {bounds}; {allowed}"


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """That a student was sealed although it failed.

    Args:
        reason: As given.
        time: When it was sealed, ISO 8601 UTC.
    """

    reason: str
    time: str


class GateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``gate.json`` of a bundle holds.

    Args:
        passed: Whether nothing failed.
        against: Version of the bundle that it was compared with; None where it was judged by floors alone.
        against_teacher: Teacher version that this bundle was distilled from.
        teacher_version: Whose scores both were judged by.
        first, last: Event times of the earliest and latest request judged, ISO 8601 UTC.
        requests, pairs: Judged.
        pools: Of the requests, those whose whole pool the teacher scored, where recall is judged.
        unseen_requests: Of the requests, those later than anything that this student has trained on.
        floors: How many were judged; with too few rows and requests, none.
        figures: How many differences from the other bundle were judged.
        limits: Applied.
        failures: What is beyond them, floors first.
        override: None where nothing failed.
    """

    passed: bool
    against: str | None
    against_teacher: str | None
    teacher_version: str
    first: str
    last: str
    requests: int
    pairs: int
    pools: int
    unseen_requests: int
    floors: int
    figures: int
    limits: Limits
    failures: list[Failure]
    override: Override | None = None

    def lines(self) -> list[str]:
        """For people: what was judged, and every failure."""
        basis = f"{self.requests:,} requests, {self.unseen_requests:,} of them later than what this student trained on"
        if self.against is None:
            head = [f"launch gate: {self.floors:,} floors alone on {basis}"]
        else:
            head = [
                f"launch gate: {self.floors:,} floors and {self.figures:,} figures beside {self.against} on {basis}"
            ]
            if self.against_teacher != self.teacher_version:
                head.append(
                    f"  {self.against} learned from {self.against_teacher}; both are judged by {self.teacher_version}"
                )
        return head + [f"  {failure.line()}" for failure in self.failures]
