"""How far the values of a catalogue are from those that a model was trained on, from counts that add up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ShiftCounts:
    """How the encoded values of some ads are spread; counts of two sets of ads add up.

    Args:
        rows: Ads counted.
        sums: Sum of the values of each feature of floats.
        bins: Values of each feature in each of its bins, int64 [bins].
    """

    rows: int
    sums: dict[str, float]
    bins: dict[str, np.ndarray]

    def merge(self, other: "ShiftCounts") -> "ShiftCounts":
        """The counts of both sets of ads together."""
        return ShiftCounts(
            self.rows + other.rows,
            {name: total + other.sums[name] for name, total in self.sums.items()},
            {name: counts + other.bins[name] for name, counts in self.bins.items()},
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON keeps it; :meth:`from_dict` reads it."""
        bins = {name: counts.tolist() for name, counts in self.bins.items()}
        return {"rows": self.rows, "sums": self.sums, "bins": bins}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ShiftCounts":
        """The counts that :meth:`as_dict` made plain."""
        bins = {name: np.asarray(counts, np.int64) for name, counts in data["bins"].items()}
        return cls(data["rows"], dict(data["sums"]), bins)
