"""The light stage: the query tower once, dot products with the candidates' vectors, utilities, survivors.

Shapes: P ads of one pool, K survivors, H heads.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import msgspec
import numpy as np

from contracts import compiled
from contracts.probability import sigmoid
from contracts.utility import best
from service.pools import Pool
from service.releases import LoadedRelease
from towers.serving import score, score_rows

CHUNK = 2_048
"""Ads that are gathered and scored at once: what one step writes the next finds in the cache."""


class Scored(Protocol):
    """A pool with its logits and per-impression probabilities [P, H] and utilities [P], wherever they were computed."""

    @property
    def release(self) -> LoadedRelease: ...
    @property
    def pool(self) -> Pool: ...
    @property
    def logits(self) -> np.ndarray: ...
    @property
    def utilities(self) -> np.ndarray: ...

    def columns_at(self, places: np.ndarray) -> np.ndarray:
        """Probabilities of the ads at these places of the pool, float64 [H, K]."""
        ...

    def best(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Places of the ``k`` best, best first, equal ones in the order of the pool, and their utilities; None where
        that is to be found from all utilities."""
        ...


class ScoredPool(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A pool that this processor scored; never written to again."""

    release: LoadedRelease
    pool: Pool
    logits: np.ndarray
    utilities: np.ndarray

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Of all ads, float64 [P, H]."""
        return sigmoid(self.logits)

    def columns_at(self, places: np.ndarray) -> np.ndarray:
        """As :class:`Scored` says."""
        if (kernels := compiled.kernels()) is None:
            return sigmoid(self.logits[places].T)
        columns = np.empty((self.logits.shape[1], len(places)))
        kernels.exponents_at(self.logits, np.ascontiguousarray(places), columns)
        np.exp(columns, columns)
        columns += 1.0
        return np.divide(1.0, columns, columns)

    def best(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As :class:`Scored` says."""
        return best(self.utilities, k)


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Ads of several pools in one order, best first.

    ``owners`` [K] are places in the list of pools, ``places`` [K] places in that pool, ``utilities`` [K] the order's;
    ``propensities`` [K] is how likely an ad was to be drawn, NaN where it was not drawn, None where none was.
    """

    owners: np.ndarray
    places: np.ndarray
    utilities: np.ndarray
    propensities: np.ndarray | None = None

    def take(self, order: np.ndarray | slice, utilities: np.ndarray | None = None) -> "Ranking":
        """The ads at these positions, with other utilities where given (these are in the new order already)."""
        taken = self.utilities[order] if utilities is None else utilities
        drawn = None if self.propensities is None else self.propensities[order]
        return Ranking(owners=self.owners[order], places=self.places[order], utilities=taken, propensities=drawn)

    def gather(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """One column [P] of each pool to one of these ads [K]."""
        if len(columns) == 1:
            return columns[0][self.places]
        gathered: np.ndarray = np.zeros(len(self), np.result_type(*columns))
        for owner, column in enumerate(columns):
            members = self.owners == owner
            gathered[members] = column[self.places[members]]
        return gathered

    @property
    def explored(self) -> np.ndarray:
        """Whether an ad was drawn, bool [K]."""
        return np.zeros(len(self), bool) if self.propensities is None else ~np.isnan(self.propensities)

    def __len__(self) -> int:
        return len(self.owners)


def score_pool(
    release: LoadedRelease, pool: Pool, query_embedding: np.ndarray, *, survivors: int | None = None
) -> Scored:
    """Score every ad of a pool against one query embedding [H, D+2], on a GPU where the release has its vectors there.

    Args:
        survivors: How many of the best are wanted, where nobody will ask for the scores of the others: a GPU then
            gives no more than these. None: all scores.
    """
    if release.device is not None:
        found = release.device.score(release, pool, query_embedding, survivors)
        if found is not None:
            return found
    return score_here(release, pool, query_embedding)


def score_here(release: LoadedRelease, pool: Pool, query_embedding: np.ndarray) -> ScoredPool:
    """Score every ad of a pool against one query embedding [H, D+2] on this processor."""
    logits = np.empty((len(pool.rows), len(query_embedding)), np.float32)
    pins = release.live.own_pins(pool.rows)
    num_cold = None if pins is None else score_rows(query_embedding, pins.halves, pool.rows, logits)
    if num_cold is None:
        for start in range(0, len(pool.rows), CHUNK):
            pins = release.live.pins(pool.rows[start : start + CHUNK])
            logits[start : start + CHUNK] = score(query_embedding, pins.vectors, pins.bias, pins.scales)
        num_cold = int(np.count_nonzero(pool.rows < 0))
    if num_cold:
        pins = release.cold.pins
        logits[pool.rows < 0] = score(query_embedding, pins.vectors, pins.bias, pins.scales)
    return scored_of(release, pool, logits)


def scored_of(release: LoadedRelease, pool: Pool, logits: np.ndarray) -> ScoredPool:
    """A pool whose logits [P, H] are known."""
    utilities = utilities_of(logits, release.objectives.head_of, pool.objectives, pool.bids)
    return ScoredPool(release=release, pool=pool, logits=logits, utilities=utilities)


def utilities_of(logits: np.ndarray, head_of: np.ndarray, codes: np.ndarray, bids: np.ndarray) -> np.ndarray:
    """Bid times the probability of what each ad's objective pays for, float64 [P].

    Args:
        logits: float32 [P, H].
        head_of: The head that each code of an objective pays for; H for the impression, which is certain.
        codes: Of the ads [P].
        bids: float64 [P].
    """
    utilities = np.empty(len(codes))
    if (kernels := compiled.kernels()) is not None:
        kernels.paid_exponents(logits, head_of, codes, utilities)
        kernels.weigh(np.exp(utilities, utilities), bids)
        return utilities
    heads = head_of[codes]
    utilities.fill(np.inf)
    for head in range(logits.shape[1]):
        np.copyto(utilities, logits[:, head], where=heads == head)
    return bids * sigmoid(utilities)
