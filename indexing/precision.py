"""What an index's vectors lose against exact ones: probabilities compared on some ads of every batch.

A few ads of each batch, evenly spread, are embedded again by the exact engine in fp32. Their probabilities with the
saved requests of the bundle are compared with those that the stored vectors give: what the engine's rounding and the
vectors' precision do together. A batch outside the limits stops the build.

Shapes: R requests, A ads, H heads, D width of a head's vector.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from contracts.errors import ArtifactError
from engines.rank_correlation import rank_correlation

CHECKED_ADS, CHECKED_QUERIES = 16, 16
"""Ads of each batch, and at most so many saved requests."""
TOP = 4
"""The best ads of a request among those checked."""
NEGLIGIBLE = 1e-6
"""Errors up to this may change the order: of ads that are equal but for rounding."""


@dataclass(frozen=True)
class PrecisionLimit:
    """What the stored vectors must keep: error of a probability, order of all pairs, the best ads of a request."""

    error: float
    rank_correlation: float
    top_overlap: float


LIMITS = {
    "fp32": PrecisionLimit(error=6e-3, rank_correlation=0.999, top_overlap=0.95),
    "fp16": PrecisionLimit(error=6e-3, rank_correlation=0.999, top_overlap=0.95),
    "int8": PrecisionLimit(error=2e-2, rank_correlation=0.998, top_overlap=0.9),
}
"""fp32 and fp16 as an engine in BF16 is allowed; int8 adds half a step of 1/127 of each vector's largest value."""


@dataclass(frozen=True)
class PrecisionLoss:
    """What was measured on some ads; that of two sets of ads is the worse of both, and the mean overlap.

    Args:
        ads: Ads compared.
        error: Largest error of a probability.
        rank_correlation: Smallest of a batch, over all its pairs, of a head.
        top_overlap: Mean share of a request's ``TOP`` ads, by a head, that are among its exact ``TOP``.
    """

    ads: int
    error: float
    rank_correlation: float
    top_overlap: float

    def merge(self, other: "PrecisionLoss") -> "PrecisionLoss":
        """The loss over both sets of ads."""
        ads = self.ads + other.ads
        overlap = (self.ads * self.top_overlap + other.ads * other.top_overlap) / ads if ads else 1.0
        return PrecisionLoss(
            ads,
            max(self.error, other.error),
            min(self.rank_correlation, other.rank_correlation),
            overlap,
        )

    def check(self, precision: str, *, source: str) -> None:
        """Refuse what is outside the limits of a precision; ArtifactError names figure and limit."""
        limit = LIMITS[precision]
        found = f"{source}: with vectors in {precision}"
        if not self.error <= limit.error:  # NaN fails
            raise ArtifactError(
                f"{found}, a probability is {self.error:.3g} from the exact one, allowed {limit.error:.3g}; {_WAY_OUT}"
            )
        if self.error > NEGLIGIBLE and not self.rank_correlation >= limit.rank_correlation:
            raise ArtifactError(
                f"{found}, ads have rank correlation {self.rank_correlation:.6g} with the exact order, "
                f"wanted {limit.rank_correlation:.6g}; {_WAY_OUT}"
            )
        if not self.top_overlap >= limit.top_overlap:
            raise ArtifactError(
                f"{found}, {self.top_overlap:.3f} of the exact top {TOP} ads are found, wanted "
                f"{limit.top_overlap:.3f}; {_WAY_OUT}"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON keeps it; :meth:`from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PrecisionLoss":
        """The loss that :meth:`as_dict` made plain."""
        return cls(**data)


NO_LOSS = PrecisionLoss(0, 0.0, 1.0, 1.0)
"""Of no ads."""
_WAY_OUT = "choose another precision, or engine onnxruntime_cpu"


def precision_loss(exact: np.ndarray, stored: np.ndarray) -> PrecisionLoss:
    """Compare probabilities [R, A, H] of exact and of stored vectors."""
    if not exact.size:
        return NO_LOSS
    num_heads = exact.shape[2]
    correlation = rank_correlation(exact.reshape(-1, num_heads), stored.reshape(-1, num_heads))
    return PrecisionLoss(
        ads=exact.shape[1],
        error=float(np.abs(exact - stored).max()),
        rank_correlation=correlation,
        top_overlap=_top_overlap(exact, stored),
    )


def spread_rows(usable: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` positions where ``usable`` [A] is true, evenly spread."""
    rows = np.flatnonzero(usable)
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))] if len(rows) else rows


def _top_overlap(exact: np.ndarray, stored: np.ndarray) -> float:
    """Share of the stored vectors' best that are as good as the exact best: ads of equal probability are as good."""
    top = min(TOP, exact.shape[1])
    worst_of_best = -np.partition(-exact, top - 1, axis=1)[:, top - 1 : top]
    best = np.argpartition(-stored, top - 1, axis=1)[:, :top]
    return float((np.take_along_axis(exact, best, axis=1) >= worst_of_best).mean())
