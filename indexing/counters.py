"""What a build counts of its batches: ads left out, their faults, coverage of features, spread of values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from contracts.encoding import Coverage
from indexing.precision import NO_LOSS, PrecisionLoss
from indexing.shift import ShiftCounts

DROPPED = ("features", "bid", "embedding")
"""Why an ad is left out: a value that a rule refuses, a bid that is no finite number of at least 0, or an embedding
that is not finite in the index's precision. An ad counts once, by the first of them."""


@dataclass(frozen=True)
class Counters:
    """Counts over some ads; those of two sets of ads add up.

    Args:
        dropped: Ads left out, by reason.
        faults: Rules that ads break, by model, column and rule.
        coverage: Missing and out-of-vocabulary values, by model.
        shift: How encoded values are spread, by model that has a training profile.
        precision: What the vectors lose, over the ads that were compared.
    """

    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPPED, 0))
    faults: dict[str, int] = field(default_factory=dict)
    coverage: dict[str, Coverage] = field(default_factory=dict)
    shift: dict[str, ShiftCounts] = field(default_factory=dict)
    precision: PrecisionLoss = NO_LOSS

    def merge(self, other: "Counters") -> "Counters":
        """The counts of both sets of ads together."""
        coverage, shift = dict(self.coverage), dict(self.shift)
        for model, covered in other.coverage.items():
            coverage[model] = coverage[model].merge(covered) if model in coverage else covered
        for model, counts in other.shift.items():
            shift[model] = shift[model].merge(counts) if model in shift else counts
        return Counters(
            dropped=_sum(self.dropped, other.dropped),
            faults=_sum(self.faults, other.faults),
            coverage=coverage,
            shift=shift,
            precision=self.precision.merge(other.precision),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON keeps it; :meth:`from_dict` reads it."""
        return {
            "dropped": self.dropped,
            "faults": self.faults,
            "coverage": {model: asdict(covered) for model, covered in self.coverage.items()},
            "shift": {model: counts.as_dict() for model, counts in self.shift.items()},
            "precision": self.precision.as_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Counters":
        """The counters that :meth:`as_dict` made plain."""
        return cls(
            dropped=dict(data["dropped"]),
            faults=dict(data["faults"]),
            coverage={model: Coverage(**covered) for model, covered in data["coverage"].items()},
            shift={model: ShiftCounts.from_dict(counts) for model, counts in data["shift"].items()},
            precision=PrecisionLoss.from_dict(data["precision"]),
        )


def _sum(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}
