"""What the service counts, for Prometheus, in a registry of its own.

Where several processes serve, each counts in files of a directory that they share, and whichever is asked adds them up;
what serves now is in ``service.serving_metrics``.
"""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from service.api import Dropped, Timing
from service.experiment_counts import ExperimentCounts
from service.feedback_counts import FeedbackCounts
from service.problems import KIND_PREFIX, problem_of
from service.process_state import ProcessBoard, shared_directory
from service.ranker import Outcome
from service.serving_metrics import ServingMetrics

SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
COUNTS = (0, 1, 10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
STAGES = ("decode", "query_tower", "light", "heavy", "total")
CALL_STAGES = ("decode", "heavy", "total")
"""Of a call of the heavy stage; ``heavy`` is what it waited and ran."""


class Telemetry:
    """All metrics of one application; the names are the contract with dashboards."""

    def __init__(self) -> None:
        self._directory, self._registry = shared_directory(), CollectorRegistry()
        self.board, registry = ProcessBoard(self._directory), self._registry
        self.serving = ServingMetrics(self.board)
        registry.register(self.serving)
        self.feedback = FeedbackCounts(registry)
        self.shadow_feedback = FeedbackCounts(registry, "shadow_feedback")
        self.experiments = ExperimentCounts(registry)
        self.requests = Counter(
            "adsieve_rank_requests", "Answers of /rank, by HTTP status.", ["status"], registry=registry
        )
        self.in_flight = Gauge(
            "adsieve_rank_in_flight",
            "Requests being read, waiting or ranked.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.stage_seconds = Histogram(
            "adsieve_stage_seconds", "Time of one stage of a request.", ["stage"], buckets=SECONDS, registry=registry
        )
        self._stages = {stage: self.stage_seconds.labels(stage) for stage in STAGES}  # looked up once, not a request
        self.candidates = Histogram(
            "adsieve_candidates", "Candidates of a request, handed in or retrieved.", buckets=COUNTS, registry=registry
        )
        self.dropped = Counter(
            "adsieve_dropped_ads", "Candidates not ranked, by reason.", ["reason"], registry=registry
        )
        self.cold = Counter(
            "adsieve_cold_ads", "Candidates that no index holds, scored all the same by policy.", registry=registry
        )
        self.degraded = Counter(
            "adsieve_degraded_requests",
            "Answers in light order for want of the heavy ranker.",
            ["reason"],
            registry=registry,
        )
        self.problems = Counter(
            "adsieve_problems",
            "Requests that got a problem instead of an answer, by its kind: deadline, overloaded, not-serving, ...",
            ["kind"],
            registry=registry,
        )
        self.missing_features = Counter(
            "adsieve_missing_features", "Query features that a request lacked.", ["feature"], registry=registry
        )
        self.unknown_features = Counter(
            "adsieve_unknown_features", "Features sent that no model reads.", registry=registry
        )
        self.heavy_batch_requests = Histogram(
            "adsieve_heavy_batch_requests",
            "Requests that one call of the heavy ranker served.",
            buckets=BATCHES,
            registry=registry,
        )
        self.heavy_wait_seconds = Histogram(
            "adsieve_heavy_wait_seconds",
            "Time that the first request of a call waited for the heavy ranker.",
            buckets=SECONDS,
            registry=registry,
        )
        self.query_batch_requests = Histogram(
            "adsieve_query_batch_requests",
            "Requests that one shared call of the query tower served.",
            buckets=BATCHES,
            registry=registry,
        )
        self.query_wait_seconds = Histogram(
            "adsieve_query_wait_seconds",
            "Time that the first request of a shared call waited for the query tower.",
            buckets=SECONDS,
            registry=registry,
        )
        self.heavy_host_up = Gauge(
            "adsieve_heavy_host_up",
            "1 where the last call to the host of the heavy stage succeeded, 0 where it failed.",
            ["host"],
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.release_failures = Counter(
            "adsieve_release_failures",
            "Releases that could not be loaded and were refused.",
            ["scenario"],
            registry=registry,
        )

        self.faults = Counter(
            "adsieve_follow_failures",
            "Times that a store could not be refreshed or updates not be applied.",
            ["what"],
            registry=registry,
        )

    def heavy_batch(self, requests: int, waited_s: float) -> None:
        """Count one call of the heavy ranker."""
        self.heavy_batch_requests.observe(requests)
        self.heavy_wait_seconds.observe(waited_s)

    def call(self, timing: Timing) -> None:
        """Count one call of the heavy stage that was answered for another host."""
        for stage in CALL_STAGES:
            self._stages[stage].observe(getattr(timing, stage) / 1000)

    def query_batch(self, requests: int, waited_s: float) -> None:
        """Count one shared call of the query tower."""
        self.query_batch_requests.observe(requests)
        self.query_wait_seconds.observe(waited_s)

    def problem(self, error: Exception) -> None:
        """Count one request that got a problem."""
        self.problems.labels(problem_of(error).type.removeprefix(KIND_PREFIX)).inc()

    def observe(self, outcome: Outcome) -> None:
        """Count one ranked request."""
        response = outcome.response
        if response.arm is not None:
            self.experiments.arm(next(iter(response.release)), response.arm)
        for stage, seconds in self._stages.items():
            seconds.observe(getattr(response.timing_ms, stage) / 1000)
        self.candidates.observe(outcome.num_candidates)
        self._observe_faults(outcome)
        if outcome.notes.unknown:
            self.unknown_features.inc(len(outcome.notes.unknown))
        for name in outcome.notes.missing():
            self.missing_features.labels(name).inc()

    def _observe_faults(self, outcome: Outcome) -> None:
        response = outcome.response
        for reason in Dropped.__struct_fields__:
            if ids := getattr(response.dropped, reason):
                self.dropped.labels(reason).inc(len(ids))
        for pool in outcome.result.resolved.pools:
            if len(pool.rows) and pool.rows.min() < 0:
                self.cold.inc(int((pool.rows < 0).sum()))
        if response.degraded is not None:
            self.degraded.labels(response.degraded.reason).inc()

    def exposition(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        if self._directory is None:
            return generate_latest(self._registry), CONTENT_TYPE_LATEST
        registry = CollectorRegistry()
        registry.register(self.serving)  # first: it forgets the gauges of dead processes
        MultiProcessCollector(registry, str(self._directory))
        return generate_latest(registry), CONTENT_TYPE_LATEST
