"""Bootstrap replicates of requests: what intervals and paired differences are made of.

A replicate draws as many requests as there are, with replacement; a request that is drawn twice counts twice, with all
its pairs. One set of replicates serves every metric, slice and student, so differences between them are paired.

Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13, percentile interval.

Shapes: N pairs, U units, B replicates, K columns, V values.
"""

from dataclasses import dataclass

import numpy as np

DRAWS = 400
MAX_UNITS = 16_384
"""Beyond so many requests they are resampled in that many random groups: the same variance, at a bounded cost."""

MIN_REQUESTS = 10
"""Of fewer requests no interval is given: their resamples say little of what other requests would have been."""

_LEVELS = (0.025, 0.975)
_LEAST_DEFINED = 0.9
_UNITS_AT_ONCE = 4_096


@dataclass(frozen=True)
class Replicates:
    """How often each replicate drew each unit, a request or a group of them.

    Args:
        unit: int32 [N], the unit that each pair belongs to.
        counts: uint8 [U, B].
    """

    unit: np.ndarray
    counts: np.ndarray

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.counts)

    def sums(self, units: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Sums over units in each replicate, float64 [B, K].

        Args:
            units: int [u], distinct; all others count nothing.
            values: float64 [u, K], of these units.
        """
        total = np.zeros((self.counts.shape[1], values.shape[1]))
        for start in range(0, len(units), _UNITS_AT_ONCE):
            here = slice(start, start + _UNITS_AT_ONCE)
            total += self.counts[units[here]].astype(np.float64).T @ values[here]
        return total


def draw_replicates(
    request: np.ndarray, *, draws: int = DRAWS, max_units: int = MAX_UNITS, seed: int = 0
) -> Replicates:
    """Replicates of the requests that pairs belong to; the same for the same requests and seed.

    Args:
        request: int [N].
        draws: Replicates, B.
        max_units: Of more requests, groups of equal size are drawn.
        seed: Of the groups and the draws.
    """
    distinct, unit = np.unique(request, return_inverse=True)
    generator = np.random.default_rng(seed)
    num_units = min(len(distinct), max_units)
    if len(distinct) > max_units:
        unit = (generator.permutation(len(distinct)) % max_units)[unit]
    counts = np.empty((num_units, draws), np.uint8)
    for draw in range(draws):
        counts[:, draw] = np.bincount(generator.integers(num_units, size=num_units), minlength=num_units)
    return Replicates(unit.astype(np.int32), counts)


def intervals(replicates: np.ndarray) -> np.ndarray:
    """95 % percentile intervals, float64 [2, K]; NaN where fewer than nine in ten replicates are defined.

    Args:
        replicates: float64 [B, K].

    Example:
        >>> intervals(np.arange(101.0)[:, None]).ravel().tolist()
        [2.5, 97.5]
    """
    defined = np.isfinite(replicates)
    bounds = np.full((2, replicates.shape[1]), np.nan)
    whole = defined.all(axis=0)
    if whole.any():
        bounds[:, whole] = np.quantile(replicates[:, whole], _LEVELS, axis=0)
    for column in np.flatnonzero(~whole & (defined.mean(axis=0) >= _LEAST_DEFINED)):
        bounds[:, column] = np.quantile(replicates[defined[:, column], column], _LEVELS)
    return bounds
