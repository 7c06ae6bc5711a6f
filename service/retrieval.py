"""Ads for a request without candidates: one search of the index, steered by a tangent to what utility really is.

An index searches for the largest ``log bid + w logit``, but utility orders by ``log bid + log sigmoid(logit)``, which
bends where probabilities are not small. The tangent to ``log sigmoid`` at ``x`` has slope ``w = 1 - sigmoid(x)`` and
lies above the curve everywhere, so that near ``x`` the search orders as utility does. ``x`` is where the best ads of
this query are: a sample of the index, scored exactly, tells for each head. The caller takes more than it needs and
ranks it by exact utility.

Shapes: S ads of the sample, A ads of the index, H heads, D width of a head's vector.
"""

from copy import copy

import numpy as np

from contracts.probability import sigmoid
from contracts.utility import ObjectiveColumns, top_positions
from indexing.live import LiveIndex
from towers.serving import score

SAMPLE_SIZE = 2048
MIN_BEST = 16
MIN_SLOPE = 1e-3
SEED = 0


class Retriever:
    """Searches one index.

    Args:
        live: Searched. Its sample is of the ads that may be served now.
        objectives: Of the release.
        index_objectives: From the index's codes of objectives to those of the release.
    """

    def __init__(self, live: LiveIndex, objectives: ObjectiveColumns, index_objectives: np.ndarray) -> None:
        self._live, self._objectives = live, objectives
        rows = np.flatnonzero(live.servable(np.arange(len(live.index))))
        self._num_active = len(rows)
        if len(rows) > SAMPLE_SIZE:
            rows = np.sort(np.random.default_rng(SEED).choice(rows, SAMPLE_SIZE, replace=False))
        self._pins, self._codes = live.index.pins.take(rows), index_objectives[live.objectives(rows)]
        bids = live.bids(rows).astype(np.float64)
        self._bids = np.where(np.isnan(bids), 1.0, np.clip(bids, 0, np.finfo(np.float32).max))

    def over(self, live: LiveIndex) -> "Retriever":
        """The same sample, searching an index whose overlay was replaced."""
        other = copy(self)
        other._live = live
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
        slopes, offsets = self.tangents(query_embedding, num_wanted)
        asked = np.array(query_embedding)
        asked[:, -1] += offsets / slopes  # the search adds slope times this bias to every score of the head
        return np.sort(self._live.search(asked, slopes, num_fetched, allowed))

    def tangents(self, query_embedding: np.ndarray, num_wanted: int) -> tuple[np.ndarray, np.ndarray]:
        """Slope and offset of each head's tangent, float32 [H]."""
        logits = score(query_embedding, self._pins.vectors, self._pins.bias, self._pins.scales).astype(np.float64)
        utilities = self._bids * self._objectives.probability(sigmoid(logits), self._codes)
        share = num_wanted / max(self._num_active, 1)
        best = top_positions(utilities, max(MIN_BEST, round(share * len(utilities))))
        heads = self._objectives.heads(self._codes)
        touch = np.array(
            [_touch(logits[:, head], np.flatnonzero(heads == head), best) for head in range(logits.shape[1])]
        )
        slopes = np.maximum(1 - sigmoid(touch), MIN_SLOPE)
        offsets = -np.logaddexp(0, -touch) - slopes * touch
        return slopes.astype(np.float32), offsets.astype(np.float32)


def _touch(logits: np.ndarray, members: np.ndarray, best: np.ndarray) -> float:
    """The mean logit of the best ads that pay for a head, else of its own best one, else what makes the slope 1."""
    among_best = np.intersect1d(members, best)
    if len(among_best):
        return float(logits[among_best].mean())
    return float(logits[members].max()) if len(members) else -20.0
