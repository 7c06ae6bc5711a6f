"""What the service counts, for Prometheus, in a registry of its own.

Where several processes serve, each counts in files of a directory that they share, and whichever is asked adds them up;
what serves now is in ``service.serving_metrics``.
"""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from service.answer_counts import SECONDS, AnswerCounts
from service.api import Problem, Timing
from service.experiment_counts import ExperimentCounts
from service.feedback_counts import FeedbackCounts
from service.process_state import ProcessBoard, shared_directory
from service.ranker import Outcome
from service.serving_metrics import ServingMetrics

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
FOLLOWED = ("engines", "overlays", "refresh", "updates")
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
        self._answers = AnswerCounts(registry)
        self._num_in_flight: Callable[[], int] | None = None
        self.in_flight = Gauge(
            "adsieve_rank_in_flight",
            "Requests being read, waiting or ranked.",
            registry=registry,
            multiprocess_mode="livesum",
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
        for what in FOLLOWED:
            self.faults.labels(what)

    def heavy_batch(self, requests: int, waited_s: float) -> None:
        """Count one call of the heavy ranker."""
        self.heavy_batch_requests.observe(requests)
        self.heavy_wait_seconds.observe(waited_s)

    def call(self, timing: Timing) -> None:
        """Count one call of the heavy stage that was answered for another host."""
        self._answers.call(timing, CALL_STAGES)

    def query_batch(self, requests: int, waited_s: float) -> None:
        """Count one shared call of the query tower."""
        self.query_batch_requests.observe(requests)
        self.query_wait_seconds.observe(waited_s)

    def problem(self, problem: Problem) -> None:
        """Note one request that got a problem; ``add_up`` counts it."""
        self._answers.problem(problem.type)

    def observe(self, outcome: Outcome, *, may_be_cold: bool) -> None:
        """Note one ranked request; ``add_up`` counts it.

        Args:
            may_be_cold: Whether ads are scored that no index holds.
        """
        response = outcome.response
        if response.arm is not None:
            self.experiments.arm(next(iter(response.release)), response.arm)
        self._answers.answer(outcome)
        if may_be_cold:
            self._answers.cold(outcome)

    def count(self, status: int) -> None:
        """Note the answer to one request, by its HTTP status; ``add_up`` counts it."""
        self._answers.status(status)

    def watch_in_flight(self, number: Callable[[], int]) -> None:
        """Ask this for the requests in flight whenever counts are added up."""
        self._num_in_flight = number

    def add_up(self) -> None:
        """Count what was noted since the last time; in any thread."""
        if self._num_in_flight is not None:
            self.in_flight.set(self._num_in_flight())
        self._answers.add_up()

    def tell(self) -> None:
        """Let the other processes of this host know what was counted here, and what serves."""
        self.add_up()
        self.serving.tell()

    def exposition(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        self.add_up()
        if self._directory is None:
            return generate_latest(self._registry), CONTENT_TYPE_LATEST
        registry = CollectorRegistry()
        registry.register(self.serving)  # first: it forgets the gauges of dead processes
        MultiProcessCollector(registry, str(self._directory))
        return generate_latest(registry), CONTENT_TYPE_LATEST
