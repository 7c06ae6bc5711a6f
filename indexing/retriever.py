"""Ads for a request without candidates: a search of the index, steered towards exact utility, and again if it must be.

A tangent lies above ``log sigmoid``, so the score that a search orders by is never below the logarithm of an ad's
utility. What a search did not fetch has a score of at most the lowest that it fetched. Where as many as are wanted have
utilities above that, no ad that was left out belongs among them. Else the sample misjudged where the best ads are, and
the search is run again with tangents that touch where the ones that it found are.

See ``indexing.tangent``. Shapes: A ads of the index, K fetched ones, H heads, D width of a head's vector.
"""

from copy import copy

import numpy as np

from contracts.utility import ObjectiveColumns
from indexing.live import LiveIndex
from indexing.retrieval import log_bid
from indexing.tangent import Tangents, sample_rows, steered, tangents_at
from towers.serving import score


class Retriever:
    """Searches one index.

    Args:
        live: Searched. Its sample is of the ads that may be served now.
        objectives: Of the release.
        index_objectives: From the index's codes of objectives to those of the release.
    """

    def __init__(self, live: LiveIndex, objectives: ObjectiveColumns, index_objectives: np.ndarray) -> None:
        self.live, self._objectives, self._index_objectives = live, objectives, index_objectives
        rows, num_servable = sample_rows(live.servable, len(live.index))
        pins, bids = live.index.pins.take(rows), live.bids(rows)
        self.tangents = Tangents.of(pins, self._heads(rows), bids, num_servable)

    def over(self, live: LiveIndex) -> "Retriever":
        """The same sample, searching an index whose overlay was replaced."""
        other = copy(self)
        other.live = live
        return other

    def rows(
        self, query_embedding: np.ndarray, num_wanted: int, num_fetched: int, allowed: np.ndarray | None
    ) -> np.ndarray:
        """At most ``num_fetched`` rows, int64, ascending.

        Args:
            query_embedding: [H, D+2].
            num_wanted: How many of the best the caller is after; where they are is where the tangent touches.
            num_fetched: More than that.
            allowed: Bool [A], or None for all.
        """
        num_allowed = None if allowed is None else int(np.count_nonzero(allowed))
        slopes, offsets = self.tangents(query_embedding, num_wanted, num_allowed)
        found = self.live.search(steered(query_embedding, slopes, offsets), slopes, num_fetched, allowed)
        if len(found) == num_fetched and num_wanted < num_fetched:
            first = _Fetched.of(self, query_embedding, found, num_wanted)
            if first.least_wanted < first.scores(slopes, offsets).min():
                slopes, offsets = first.tangents(slopes, offsets)
                again = self.live.search(steered(query_embedding, slopes, offsets), slopes, num_fetched, allowed)
                second = _Fetched.of(self, query_embedding, again, num_wanted)
                found = again if second.least_wanted > first.least_wanted else found
        return np.sort(found)

    def _heads(self, rows: np.ndarray) -> np.ndarray:
        """The head that the objective of each row pays for, H for the impression."""
        return self._objectives.heads(self._index_objectives[self.live.objectives(rows)])


class _Fetched:
    """Ads that a search fetched, scored exactly: logits of what each one's bid pays for [K], 0 for the impression."""

    def __init__(
        self, logits: np.ndarray, heads: np.ndarray, log_bids: np.ndarray, num_heads: int, wanted: int
    ) -> None:
        self._logits, self._heads, self._log_bids, self._num_heads = logits, heads, log_bids, num_heads
        utilities = log_bids - np.where(heads < num_heads, np.logaddexp(0, -logits), 0)
        self._best = np.argpartition(-utilities, wanted - 1)[:wanted]
        self.least_wanted = float(utilities[self._best].min())
        """Log utility of the last ad that is wanted."""

    @classmethod
    def of(cls, retriever: Retriever, query_embedding: np.ndarray, rows: np.ndarray, wanted: int) -> "_Fetched":
        live, heads = retriever.live, retriever._heads(rows)
        pins, num_heads = live.pins(rows), len(query_embedding)
        logits = score(query_embedding, pins.vectors, pins.bias, pins.scales).astype(np.float64)
        own = np.where(heads < num_heads, logits[np.arange(len(rows)), np.minimum(heads, num_heads - 1)], 0)
        return cls(own, heads, log_bid(live.bids(rows)).astype(np.float64), num_heads, wanted)

    def scores(self, slopes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """What the search ordered by."""
        return self._log_bids + np.r_[slopes, 0][self._heads] * self._logits + np.r_[offsets, 0][self._heads]

    def tangents(self, slopes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tangents that touch at the mean logit of the best ads of each head; those given where it has none."""
        heads, logits = self._heads[self._best], self._logits[self._best]
        counts = np.bincount(heads, minlength=self._num_heads + 1)[:-1]
        means = np.bincount(heads, logits, self._num_heads + 1)[:-1] / np.maximum(counts, 1)
        at, rises = tangents_at(means)
        return np.where(counts > 0, at, slopes), np.where(counts > 0, rises, offsets)
