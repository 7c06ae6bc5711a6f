"""What the feedback log counts, for Prometheus."""

from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

Dropped = Literal["queue_full", "repeated", "invalid", "failed"]


class FeedbackCounts:
    """Requests by what became of them in the feedback log; requests outside the sample are in none of them.

    ``written`` are in a whole file. Dropped ones are ``queue_full`` (the writer did not keep up), ``repeated`` (their
    id was logged a short while ago), ``invalid`` (a feature that no model had read has a value that no training could
    read) or ``failed`` (their file could not be written).

    Args:
        registry: Takes the metrics.
        name: Of the log: what all of its metrics begin with.
    """

    def __init__(self, registry: CollectorRegistry, name: str = "feedback") -> None:
        self._requests = Counter(
            f"adsieve_{name}_requests", "Sampled requests, by what became of them.", ["result"], registry=registry
        )
        for result in ("written", *get_args(Dropped)):
            self._requests.labels(result)  # 0 from the start, so that a rate of it is known
        self._candidates = Counter(
            f"adsieve_{name}_candidates", "Candidates in whole files of the feedback log.", registry=registry
        )
        self._cold = Counter(
            f"adsieve_{name}_cold_ads",
            "Ads left out of logged requests, since no index holds their features.",
            registry=registry,
        )
        self._files = Counter(f"adsieve_{name}_files", "Whole pairs of files of the feedback log.", registry=registry)
        self._waiting = Gauge(
            f"adsieve_{name}_waiting",
            "Requests that the feedback log's writer has not taken up.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def waiting(self, requests: int) -> None:
        """Note how long the queue is."""
        self._waiting.set(requests)

    def dropped(self, reason: Dropped, requests: int = 1) -> None:
        """Note requests that are in no file."""
        self._requests.labels(reason).inc(requests)

    def left_out(self, ads: int) -> None:
        """Note ads without features in a request that is logged."""
        self._cold.inc(ads)

    def written(self, requests: int, candidates: int) -> None:
        """Note one whole pair of files."""
        self._requests.labels("written").inc(requests)
        self._candidates.inc(candidates)
        self._files.inc()
