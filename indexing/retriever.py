"""Ads for a request without candidates: one search of the index, steered towards exact utility.

See ``indexing.tangent``. Shapes: A ads of the index, H heads, D width of a head's vector.
"""

from copy import copy

import numpy as np

from contracts.utility import ObjectiveColumns
from indexing.live import LiveIndex
from indexing.tangent import Tangents, sample_rows


class Retriever:
    """Searches one index.

    Args:
        live: Searched. Its sample is of the ads that may be served now.
        objectives: Of the release.
        index_objectives: From the index's codes of objectives to those of the release.
    """

    def __init__(self, live: LiveIndex, objectives: ObjectiveColumns, index_objectives: np.ndarray) -> None:
        self.live = live
        rows, num_servable = sample_rows(live.servable, len(live.index))
        self.tangents = Tangents.of(
            pins=live.index.pins.take(rows),
            heads=objectives.heads(index_objectives[live.objectives(rows)]),
            bids=live.bids(rows),
            num_ads=num_servable,
        )

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
        asked, weights = self.tangents.steer(query_embedding, num_wanted)
        return np.sort(self.live.search(asked, weights, num_fetched, allowed))
