"""What the launch gate found, as ``gate.json`` of a bundle keeps it."""

import msgspec

from distill.gate_limits import Limits
from distill.slices import ALL

GATE_FILE = "gate.json"
POOLS = "whole pools"
"""Stands for the stage where recall is judged."""


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
        return f"{figure} {self.before:.4g} -> {self.after:.4g}, {self._excess()}, difference {bounds}; {allowed}"

    def _excess(self) -> str:
        match self.metric:
            case "kl":
                return f"a relative rise of {self.excess:.4g}"
            case "calibration":
                return f"off by a factor of {1 + self.excess:.4g} where {1 + self.allowed:.4g} is allowed"
        return f"lower by {self.excess:.4g}"


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
        passed: Whether something was judged and nothing failed.
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
        skipped: What the log was too small to judge, and why.
        override: None where the student passed.
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
    skipped: list[str] = []
    override: Override | None = None

    def lines(self) -> list[str]:
        """For people: what was judged and what was not, and every failure."""
        basis = f"{self.requests:,} requests, {self.unseen_requests:,} of them later than what this student trained on"
        held = f"held to {self.floors:,} minimum limits"
        if self.against is None:
            found = [f"launch gate: no serving student: {held}, on {basis}"]
        else:
            found = [f"launch gate: {held} and to {self.figures:,} figures of {self.against}, on {basis}"]
            if self.against_teacher != self.teacher_version:
                found.append(
                    f"  {self.against} learned from {self.against_teacher}; both are judged by {self.teacher_version}"
                )
        if self.skipped:
            found.append(f"  not judged: {', '.join(self.skipped)}")
        if not self.unseen_requests:
            found.append("  warning: all of these requests are of days that this student trained on; judge later ones")
        return found + [f"  {failure.line()}" for failure in self.failures]
