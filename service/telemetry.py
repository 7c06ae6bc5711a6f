"""What the service counts, for Prometheus, in a registry of its own."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from contracts.release import UpdatePosition
from service.api import Dropped, RankResponse
from service.experiment_counts import ExperimentCounts
from service.feedback_counts import FeedbackCounts
from service.ranker import Outcome
from service.releases import LoadedRelease

SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
COUNTS = (0, 1, 10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
STAGES = ("decode", "query_tower", "light", "heavy", "total")


class Telemetry:
    """All metrics of one application; the names are the contract with dashboards."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.feedback = FeedbackCounts(registry)
        self.experiments = ExperimentCounts(registry)
        self.requests = Counter(
            "adsieve_rank_requests", "Answers of /rank, by HTTP status.", ["status"], registry=registry
        )
        self.in_flight = Gauge("adsieve_rank_in_flight", "Requests being read, waiting or ranked.", registry=registry)
        self.stage_seconds = Histogram(
            "adsieve_stage_seconds", "Time of one stage of a request.", ["stage"], buckets=SECONDS, registry=registry
        )
        self.candidates = Histogram(
            "adsieve_candidates", "Candidates of a request, handed in or retrieved.", buckets=COUNTS, registry=registry
        )
        self.dropped = Counter(
            "adsieve_dropped_ads", "Candidates not ranked, by reason.", ["reason"], registry=registry
        )
        self.degraded = Counter(
            "adsieve_degraded_requests",
            "Answers in light order for want of the heavy ranker.",
            ["reason"],
            registry=registry,
        )
        self.missing_features = Counter(
            "adsieve_missing_features", "Query features that a request lacked.", ["feature"], registry=registry
        )
        self.unknown_features = Counter(
            "adsieve_unknown_features", "Features sent that no model reads.", registry=registry
        )
        self.release_loaded = Gauge(
            "adsieve_release_loaded_timestamp_seconds",
            "When the serving release was loaded, Unix time.",
            ["scenario", "release", "two_tower", "index", "heavy"],
            registry=registry,
        )
        self.engine = Gauge(
            "adsieve_engine_info",
            "1 for the engine that runs a model.",
            ["scenario", "model", "engine"],
            registry=registry,
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
        self.update_position = Gauge(
            "adsieve_update_position", "Number of the last update in effect.", ["scenario"], registry=registry
        )
        self.updates_waiting = Gauge(
            "adsieve_updates_waiting",
            "Numbers of the log that are not in effect yet; at least as many as updates, since numbers may leap.",
            ["scenario"],
            registry=registry,
        )
        self.update_applied = Gauge(
            "adsieve_update_applied_timestamp_seconds",
            "When the last update came into effect on this host, Unix time; 0 before the first.",
            ["scenario"],
            registry=registry,
        )
        self.log_readable = Gauge(
            "adsieve_update_log_readable", "0 where the log of updates cannot be read or is gone.", registry=registry
        )
        self.log_damaged = Gauge(
            "adsieve_update_log_damaged_lines",
            "Lines of the log of updates that could not be read; what they said is lost.",
            ["scenario"],
            registry=registry,
        )
        self.overlay_rows = Gauge(
            "adsieve_overlay_rows", "New and changed ads beside the index.", ["scenario"], registry=registry
        )
        self.content_dropped = Gauge(
            "adsieve_content_dropped",
            "New and changed ads that could not be embedded, since the overlay was begun.",
            ["scenario"],
            registry=registry,
        )
        self.index_watermark = Gauge(
            "adsieve_index_watermark_timestamp_seconds",
            "Latest moment of the catalogue in the serving index, Unix time.",
            ["scenario"],
            registry=registry,
        )

    def heavy_batch(self, requests: int, waited_s: float) -> None:
        """Count one call of the heavy ranker."""
        self.heavy_batch_requests.observe(requests)
        self.heavy_wait_seconds.observe(waited_s)

    def observe(self, outcome: Outcome) -> None:
        """Count one ranked request."""
        response = outcome.response
        if response.arm is not None:
            self.experiments.arm(response.arm)
        for stage in STAGES:
            self.stage_seconds.labels(stage).observe(getattr(response.timing_ms, stage) / 1000)
        self.candidates.observe(outcome.num_candidates)
        self._observe_faults(response)
        self.unknown_features.inc(len(outcome.notes.unknown))
        for name in outcome.notes.missing():
            self.missing_features.labels(name).inc()

    def _observe_faults(self, response: RankResponse) -> None:
        for reason in Dropped.__struct_fields__:
            if ids := getattr(response.dropped, reason):
                self.dropped.labels(reason).inc(len(ids))
        if response.degraded is not None:
            self.degraded.labels(response.degraded.reason).inc()

    def loaded(self, before: LoadedRelease | None, after: LoadedRelease, at: float) -> None:
        """Note that one release took the place of another."""
        if before is not None:
            self.release_loaded.remove(*_release_labels(before))
            for model, engine in _engines(before):
                self.engine.remove(before.scenario, model, engine)
        for model, engine in _engines(after):
            self.engine.labels(after.scenario, model, engine).set(1)
        self.release_loaded.labels(*_release_labels(after)).set(at)
        self.index_watermark.labels(after.scenario).set(after.watermark.timestamp())

    def updated(self, loaded: LoadedRelease, end: UpdatePosition | None) -> None:
        """Note how far the updates of the day are in effect; what all processes of a host tell alike."""
        live, scenario = loaded.live, loaded.scenario
        seq = 0 if live.position is None else live.position.seq
        self.update_position.labels(scenario).set(seq)
        self.updates_waiting.labels(scenario).set(0 if end is None else max(0, end.seq - seq))
        self.update_applied.labels(scenario).set(live.applied_at)
        self.log_damaged.labels(scenario).set(live.damaged_lines)
        self.overlay_rows.labels(scenario).set(live.num_rows - len(loaded.index))
        self.content_dropped.labels(scenario).set(live.dropped_contents)

    def exposition(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


def _release_labels(loaded: LoadedRelease) -> tuple[str, ...]:
    versions = loaded.versions
    return (loaded.scenario, loaded.release.release_id, versions.two_tower, versions.index, versions.heavy or "")


def _engines(loaded: LoadedRelease) -> list[tuple[str, str]]:
    """Models of a release with the engine that runs each."""
    heavy = [("heavy", loaded.heavy.engine)] if loaded.heavy else []
    return [("query_tower", loaded.tower.engine), *heavy]
