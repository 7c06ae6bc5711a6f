"""What A/B splits and shadows count, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


class ExperimentCounts:
    """Requests by arm, and how a shadow's answers differ from those that were given.

    Args:
        registry: Takes the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._arms = Counter(
            "adsieve_arm_requests",
            "Answers by arm of their split; one to a mixed list counts for each scenario.",
            ["scenario", "arm"],
            registry=registry,
        )
        self._shadows = Counter(
            "adsieve_shadow_requests",
            "Requests for a shadow: ranked, dropped since too many waited, or failed.",
            ["result"],
            registry=registry,
        )
        for result in ("ranked", "dropped", "failed"):
            self._shadows.labels(result)  # 0 from the start, so that a rate of it is known
        self._overlap = Histogram(
            "adsieve_shadow_overlap_ratio",
            "Share of an answer's ads that the shadow would have answered too.",
            ["scenario"],
            buckets=SHARES,
            registry=registry,
        )

    def arm(self, scenario: str, arm: str) -> None:
        """Note an answer.

        Args:
            scenario: Of the request.
            arm: As the answer names it, such as ``b``, or ``shopping=b,standard=a``.
        """
        for part in arm.split(","):
            before, _, name = part.rpartition("=")
            self._arms.labels(before or scenario, name).inc()

    def shadow(self, result: str) -> None:
        """Note what became of a request for a shadow."""
        self._shadows.labels(result).inc()

    def overlap(self, scenario: str, share: float) -> None:
        """Note how much of an answer a shadow shares."""
        self._overlap.labels(scenario).observe(share)
