"""What answers of /rank count. A request notes it, and whoever calls ``add_up`` counts for many at a time."""

from collections import deque
from typing import get_args

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, Counter

from service.api import Degraded, Dropped, Timing
from service.features import FeatureNotes
from service.lots import LateCounters, LotHistogram, taken
from service.problems import KIND_PREFIX
from service.ranker import Outcome

SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
COUNTS = (0, 1, 10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
STAGES = Timing.__struct_fields__
STATUSES = (200, 422, 503)
KINDS = ("deadline", "invalid-value", "not-serving", "overloaded")
"""What is answered in any service sooner or later: statuses, and kinds of problems."""
MAX_NOTED = 1_024
"""Notes that wait to be counted; one more has them counted at once, should nobody else do it."""


class AnswerCounts:
    """Metrics of answers.

    Series of labels that are known are there from the start, so that a rate sees the first event of each.

    Args:
        registry: Takes the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "adsieve_rank_requests", "Answers of /rank, by HTTP status.", ["status"], registry=registry
        )
        self._problems = Counter(
            "adsieve_problems",
            "Requests that got a problem instead of an answer, by its kind: deadline, overloaded, not-serving, ...",
            ["kind"],
            registry=registry,
        )
        self._stages = LotHistogram(
            "adsieve_stage_seconds",
            "Time of one stage of a request.",
            labels=["stage"],
            known=[(stage,) for stage in STAGES],
            buckets=SECONDS,
            registry=registry,
        )
        self._candidates = LotHistogram(
            "adsieve_candidates", "Candidates of a request, handed in or retrieved.", buckets=COUNTS, registry=registry
        )
        self._dropped = Counter(
            "adsieve_dropped_ads", "Candidates not ranked, by reason.", ["reason"], registry=registry
        )
        self._cold = Counter(
            "adsieve_cold_ads", "Candidates that no index holds, scored all the same by policy.", registry=registry
        )
        self._degraded = Counter(
            "adsieve_degraded_requests",
            "Answers in light order for want of the heavy ranker.",
            ["reason"],
            registry=registry,
        )
        self._missing_features = Counter(
            "adsieve_missing_features", "Query features that a request lacked.", ["feature"], registry=registry
        )
        self._unknown_features = Counter(
            "adsieve_unknown_features", "Features sent that no model reads.", registry=registry
        )
        self._of_status = {status: self._requests.labels(str(status)) for status in STATUSES}
        self._of_problem = {KIND_PREFIX + kind: self._problems.labels(kind) for kind in KINDS}
        self._of_drop = {reason: self._dropped.labels(reason) for reason in Dropped.__struct_fields__}
        for reason in get_args(Degraded.__annotations__["reason"]):
            self._degraded.labels(reason)
        self._answers: deque[tuple[Timing, int]] = deque()
        self._late = LateCounters()

    def status(self, status: int) -> None:
        """Note an answer, by its HTTP status."""
        counter = self._of_status.get(status)
        if counter is None:
            counter = self._of_status[status] = self._requests.labels(str(status))
        self._note(counter)

    def problem(self, name: str) -> None:
        """Note an answer that is a problem, by the type that it names."""
        counter = self._of_problem.get(name)
        if counter is None:
            counter = self._of_problem[name] = self._problems.labels(name.removeprefix(KIND_PREFIX))
        self._note(counter)

    def _note(self, counter: Counter) -> None:
        self._late.note(counter)
        if len(self._late) > MAX_NOTED:
            self.add_up()

    def answer(self, outcome: Outcome) -> None:
        """Note what a ranked request was like."""
        response, notes = outcome.response, outcome.notes
        self._answers.append((response.timing_ms, outcome.num_candidates))
        dropped = response.dropped
        for reason, counter in self._of_drop.items():
            if count := len(getattr(dropped, reason)):
                self._late.note(counter, count)
        if response.degraded is not None:
            self._late.note(self._degraded.labels(response.degraded.reason))
        if notes.unknown:
            self._late.note(self._unknown_features, len(notes.unknown))
        for report in notes.reports.values():
            if report.missing:
                self._missing(notes)
                break

    def _missing(self, notes: FeatureNotes) -> None:
        for name in notes.missing():
            self._late.note(self._missing_features.labels(name))

    def cold(self, outcome: Outcome) -> None:
        """Note the candidates that were scored although no index holds them."""
        cold = sum(int((pool.rows < 0).sum()) for pool in outcome.result.resolved.pools)
        if cold:
            self._late.note(self._cold, cold)

    def call(self, timing: Timing, stages: tuple[str, ...]) -> None:
        """Count the time of some stages at once."""
        for stage in stages:
            self._stages.series(stage).add(np.array([getattr(timing, stage) / 1000]))

    def add_up(self) -> None:
        """Count all that was noted; in any thread."""
        self._late.add_up()
        answers = list(taken(self._answers))
        if not answers:
            return
        seconds = np.array([msgspec.structs.astuple(timing) for timing, _ in answers]) / 1000
        for stage, column in zip(STAGES, seconds.T, strict=True):
            self._stages.series(stage).add(column)
        self._candidates.series().add(np.array([count for _, count in answers]))
