"""How far the values of a catalogue are from those that a model was trained on, from counts that add up.

For each feature of a model's ad side: the shares that are missing and out of vocabulary, the mean in training standard
deviations, and the population stability index over a coarse histogram,

    PSI = sum over bins of (found - trained) * ln(found / trained)

less what it would be by chance in so few rows, ``(bins - 1) * (1 / rows found + 1 / rows trained)``. The training side
is the bundle's ``profile.json``; a bundle without one is not compared. Source of the index: credit scoring, where .1 to
.25 counts as a moderate change and more as a large one.

A heavy ranker of all scenarios was trained on ads of all of them, an index holds those of one: their spread and means
differ by construction. Of such a model only shares are warned of, and only where no mixture explains them; that values
moved is told by the two-tower bundle, which is of the index's scenario. What is found is reported of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from msgspec import json

from contracts.bundle import Bundle
from contracts.encoding import Coverage, Encoded
from contracts.histogram import float_bins, id_bins
from contracts.layout import FloatColumn, IdColumn, side_layout
from contracts.release import IndexManifest

PROFILE_FILE = "profile.json"
MORE, MEAN_SHIFT, LARGE_PSI = 0.05, 0.5, 0.25
"""From these differences on a feature is worth a warning: of the share that is missing or out of vocabulary, of the
mean in standard deviations, and the index. Shares and means must differ by three standard errors more."""
OF_ALL_SCENARIOS = 4.0
"""What a model of all scenarios saw of one that is a quarter of its training data: that scenario's share may be so many
times the share over all."""
_VALUES_A_BIN = 10
"""Of fewer the index says more of chance than of them."""
_SMALLEST_SHARE = 1e-4
"""Stands in for the share of an empty bin."""


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


class CountedRows:
    """Encoded ads [B] where ``valid`` [B], and what is counted of them for any profile; each is counted once."""

    def __init__(self, encoded: Encoded, valid: np.ndarray) -> None:
        every = bool(valid.all())
        self.ids, self.floats = (part if every else part[valid] for part in (encoded.ids, encoded.floats))
        self._id_bins: dict[tuple[int, int], np.ndarray] = {}

    @cached_property
    def totals(self) -> np.ndarray:
        """Sum of each column of floats."""
        return self.floats.sum(axis=0, dtype=np.float64)

    def id_bins(self, start: int, width: int) -> np.ndarray:
        """Bins of the ids in ``width`` columns from ``start`` on."""
        if (start, width) not in self._id_bins:
            self._id_bins[start, width] = id_bins(self.ids[:, start : start + width])
        return self._id_bins[start, width]


class AdProfile:
    """The training statistics of a model's ad side, and the counts of a catalogue that are compared with them.

    Args:
        rows: Rows that the statistics were taken over.
        features: Of ``profile.json``: a feature that the schema has and this lacks is not compared.
        dense: Columns of floats.
        bags: Columns of ids.
        is_mixed: Whether they are of all scenarios, and a catalogue is of one.
    """

    def __init__(
        self,
        rows: int,
        features: Mapping[str, Mapping[str, Any]],
        dense: tuple[FloatColumn, ...],
        bags: tuple[IdColumn, ...],
        *,
        is_mixed: bool = False,
    ) -> None:
        self._rows, self._features, self._is_mixed = rows, features, is_mixed
        self._dense = [column for column in dense if column.name in features]
        self._bags = [column for column in bags if "groups" in features.get(column.name, {})]
        self._histograms = {
            column.name: histogram for column in self._dense if (histogram := _histogram(features[column.name]))
        }

    def count(self, encoded: Encoded, valid: np.ndarray) -> ShiftCounts:
        """Count encoded ads [B] where ``valid`` [B]."""
        return self.count_rows(CountedRows(encoded, valid))

    def count_rows(self, rows: "CountedRows") -> ShiftCounts:
        """As :meth:`count`, of rows that the profiles of several models count."""
        bins = {column.name: rows.id_bins(column.start, column.width) for column in self._bags}
        for column in self._dense:
            if column.name in self._histograms:
                values = np.ascontiguousarray(rows.floats[:, column.start])
                bins[column.name] = float_bins(values, self._histograms[column.name][0])
        totals = rows.totals
        sums = {column.name: float(totals[column.start : column.start + column.width].sum()) for column in self._dense}
        return ShiftCounts(len(rows.ids), sums, bins)

    def report(self, counts: ShiftCounts, coverage: Coverage) -> dict[str, dict[str, Any]]:
        """What is known of each feature, in the catalogue and in training."""
        widths = {column.name: column.width for column in self._dense}
        return {
            name: self._feature(name, trained, counts, coverage, widths.get(name))
            for name, trained in self._features.items()
        }

    def _feature(
        self, name: str, trained: Mapping[str, Any], counts: ShiftCounts, coverage: Coverage, width: int | None
    ) -> dict[str, Any]:
        ads = max(coverage.rows, 1)
        found: dict[str, Any] = {
            "rows": counts.rows,
            "trained_on": "all scenarios" if self._is_mixed else "this scenario",
            "missing": coverage.missing.get(name, 0) / ads,
            "missing_trained": trained["missing"],
            "out_of_vocabulary": coverage.out_of_vocabulary.get(name, 0) / ads,
            "out_of_vocabulary_trained": trained["out_of_vocabulary"],
        }
        if width is not None and counts.rows:
            mean = counts.sums[name] / (counts.rows * width)
            found["mean"], found["mean_trained"] = mean, trained["mean"]
            found["mean_shift"] = (mean - trained["mean"]) / trained["std"] if trained["std"] > 0 else None
        if name in counts.bins:
            shares = self._histograms[name][1] if name in self._histograms else np.asarray(trained["groups"])
            found["psi"] = stability_index(counts.bins[name], shares, trained_rows=self._rows)
        return found


def ad_profile(bundle: Bundle) -> AdProfile | None:
    """The ad side of a bundle's profile, or None where it keeps none."""
    if PROFILE_FILE not in bundle.manifest.files:
        return None
    profile = json.decode(bundle.file(PROFILE_FILE).read_bytes()).get("ad")
    if profile is None:
        return None
    layout = side_layout(bundle.schema, "ad")
    is_mixed = bundle.manifest.scenario is None
    return AdProfile(profile["rows"], profile["features"], layout.dense, layout.bags, is_mixed=is_mixed)


def stability_index(counts: np.ndarray, shares: np.ndarray, *, trained_rows: int) -> float | None:
    """PSI of ``counts`` [bins] against training ``shares`` [bins], less what chance gives; None for too few values.

    Example:
        >>> round(stability_index(np.array([750, 250]), np.array([0.5, 0.5]), trained_rows=1000), 3)
        0.273
    """
    total = counts.sum()
    used = (counts > 0) | (shares > 0)
    if total < max(_VALUES_A_BIN * used.sum(), 1):
        return None
    found, trained = (np.maximum(share[used], _SMALLEST_SHARE) for share in (counts / total, shares))
    by_chance = (used.sum() - 1) * (1 / total + 1 / max(trained_rows, 1))
    return float(max(((found - trained) * np.log(found / trained)).sum() - by_chance, 0.0))


def shift_warnings(model: str, features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each feature that is far from training, such as ``two_tower price: 41 % missing, 2 % in training``."""
    lines = []
    for name, found in features.items():
        causes = [
            *(cause for key, words in _SHARES.items() for cause in _more(found, key, words)),
            *_moved(found),
        ]
        if causes:
            lines.append(f"{model} {name}: {'; '.join(causes)}")
    return lines


def coverage_lines(manifest: IndexManifest) -> list[str]:
    """What a build says of its ads for people: one line a model, then the manifest's warnings."""
    lines = []
    for model, covered in manifest.coverage.items():
        worst = [_worst(covered, key, words) for key, words in _SHARES.items()]
        lines.append(f"{model}: {covered['rows']:,} ads{''.join(f', {part}' for part in worst if part)}")
    return lines + [f"warning: {line}" for line in manifest.warnings]


_SHARES = {"missing": "missing", "out_of_vocabulary": "out of vocabulary"}


def _worst(covered: Mapping[str, Any], key: str, words: str) -> str:
    """The feature with the largest share, such as ``at most 3 % missing (price)``."""
    counts: Mapping[str, int] = covered[key]
    name = max(counts, key=lambda feature: counts[feature], default="")
    return f"at most {_percent(counts[name] / covered['rows'])} {words} ({name})" if name and counts[name] else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _more(found: Mapping[str, Any], key: str, words: str) -> list[str]:
    share, trained = found[key], found[f"{key}_trained"]
    by_chance = 3 * sqrt(max(trained * (1 - trained), 0.0) / max(found["rows"], 1))
    expected, of_all = (trained * OF_ALL_SCENARIOS, " of all scenarios") if _is_mixed(found) else (trained, "")
    if share <= expected + MORE + by_chance:
        return []
    return [f"{_percent(share)} {words}, {_percent(trained)} in training{of_all}"]


def _is_mixed(found: Mapping[str, Any]) -> bool:
    return found.get("trained_on") == "all scenarios"


def _moved(found: Mapping[str, Any]) -> list[str]:
    causes: list[str] = []
    if _is_mixed(found):
        return causes
    shift = found.get("mean_shift")
    if shift is not None and abs(shift) > MEAN_SHIFT + 3 / sqrt(found["rows"]):
        way = "above" if shift > 0 else "below"
        causes.append(f"mean {abs(shift):.1f} training standard deviations {way} that of training")
    if (found.get("psi") or 0.0) > LARGE_PSI:
        causes.append(f"values spread otherwise than in training, population stability index {found['psi']:.2f}")
    return causes


def _histogram(trained: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Edges and training shares of a feature: its histogram, or of an older profile what its quantiles say."""
    if "histogram" in trained:
        return np.asarray(trained["histogram"]["edges"]), np.asarray(trained["histogram"]["shares"])
    if "quantiles" not in trained:
        return None
    levels = np.array([float(level) for level in trained["quantiles"]])
    edges, first = np.unique(np.array(list(trained["quantiles"].values())), return_index=True)
    if len(edges) < len(levels):  # many rows have one value: how many, the quantiles do not say
        return None
    return edges, np.diff(np.r_[0.0, levels[first], 1.0])
