"""What an index's vectors lose against exact ones: probabilities compared on some ads of every batch.

Some ads of each batch, evenly spread, are embedded again by the exact engine in fp32. Their probabilities with the
saved requests of the bundle are compared with those that the stored vectors give: what the engine's rounding and the
vectors' precision do together. An error outside its limit stops the build at once, however few ads there are. Order and
best ads are compared in groups of ``CHECKED_ADS``. Means over all groups so far stop the build, only from
``ENOUGH_ADS`` on: of a few ads that happen to be near one another, any rounding changes the order. So many are compared
at the beginning, whatever the size of a batch, and a build of a lost order ends with its first batches.

Shapes: R requests, A ads, H heads, D width of a head's vector.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from contracts.errors import ArtifactError
from engines.rank_correlation import rank_correlation

CHECKED_ADS, CHECKED_QUERIES = 16, 16
"""Ads of each batch but the first ones, and at most so many saved requests."""
ENOUGH_ADS = 256
"""Ads compared from which on order and best ads are judged: the first ones of a catalogue, or spread over a batch."""
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
    """What was measured on some ads; of two sets of ads the larger error, and the means by number of ads of the rest.

    Args:
        ads: Ads compared.
        error: Largest error of a probability.
        rank_correlation: Mean over groups of that of all pairs of a group, by the head where it is smallest.
        top_overlap: Mean share of a request's ``TOP`` ads, by a head, that are among its exact ``TOP``.
    """

    ads: int
    error: float
    rank_correlation: float
    top_overlap: float

    def merge(self, other: "PrecisionLoss") -> "PrecisionLoss":
        """The loss over both sets of ads."""
        ads = self.ads + other.ads
        if not ads:
            return NO_LOSS
        share = other.ads / ads
        return PrecisionLoss(
            ads,
            float(np.maximum(self.error, other.error)),  # NaN stays
            self.rank_correlation + share * (other.rank_correlation - self.rank_correlation),
            self.top_overlap + share * (other.top_overlap - self.top_overlap),
        )

    def check_error(self, precision: str, *, source: str) -> None:
        """Refuse an error outside the limit of a precision, of any number of ads; ArtifactError names both."""
        limit, found = LIMITS[precision], f"{source}: with vectors in {precision}"
        if not self.error <= limit.error:  # NaN fails
            raise ArtifactError(
                f"{found}, a probability is {self.error:.3g} from the exact one, allowed {limit.error:.3g}; {_WAY_OUT}"
            )

    def check_order(self, precision: str, *, source: str) -> None:
        """Refuse a lost order of ``ENOUGH_ADS`` or more; ArtifactError names figure and limit."""
        if self.ads < ENOUGH_ADS:
            return
        limit, found = LIMITS[precision], f"{source}: with vectors in {precision}"
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


def num_to_check(position: int) -> int:
    """How many ads of a batch are compared, at most.

    Args:
        position: Ads of the catalogue before the batch; they alone decide, so that a build that was interrupted, or is
            embedded on several machines, compares the same ads.

    Example:
        >>> num_to_check(0), num_to_check(100), num_to_check(16_384)
        (256, 156, 16)
    """
    return max(CHECKED_ADS, ENOUGH_ADS - position)


def precision_loss(exact: np.ndarray, stored: np.ndarray) -> PrecisionLoss:
    """Compare probabilities [R, A, H] of exact and of stored vectors, in as few groups as there must be of ads."""
    num_groups, loss = -(-exact.shape[1] // CHECKED_ADS), NO_LOSS
    for first in range(num_groups):
        loss = loss.merge(_group_loss(exact[:, first::num_groups], stored[:, first::num_groups]))
    return loss


def _group_loss(exact: np.ndarray, stored: np.ndarray) -> PrecisionLoss:
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
