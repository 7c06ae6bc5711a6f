"""Ads for a request without candidates: nearest pin embeddings, over-fetched for exact utility to re-rank.

Utility is no inner product: an ad's bid pays for one head, through a sigmoid. So ads are searched apart by the head
that their objective pays for, where the logit of that head orders them as their probability does; ads that pay for the
impression alone need no search, their bid orders them. Shapes: A ads, H heads, D width of a head's vector.
"""

import numpy as np
from indexing.index import Index

ACTIVE = 0


class Retriever:
    """Retrieves active ads of one index.

    Args:
        index: Searched.
        heads: The head that each ad's objective pays for [A]; ``num_heads`` for the impression.
        num_heads: H.
    """

    def __init__(self, index: Index, heads: np.ndarray, num_heads: int) -> None:
        self._index = index
        self._num_heads = num_heads
        active = np.asarray(index.status) == ACTIVE
        members = {int(head): active & (heads == head) for head in np.unique(heads)}
        impression = members.pop(num_heads, np.zeros(0, bool))
        self._members = {head: mask for head, mask in members.items() if mask.any()}
        rows = np.flatnonzero(impression)
        bids = np.nan_to_num(np.asarray(index.bids)[rows], nan=-1.0)
        self._impression_rows = rows[np.argsort(-bids, kind="stable")]

    def rows(self, query_embedding: np.ndarray, k: int, excluded: np.ndarray | None) -> np.ndarray:
        """At most ``k`` rows for each head in use, int64, ascending.

        Args:
            query_embedding: [H, D+2].
            excluded: Bool [A], ads that must not appear, or None.
        """
        found = [self._search(query_embedding, head, mask, k, excluded) for head, mask in self._members.items()]
        paying_impressions = self._impression_rows
        if excluded is not None:
            paying_impressions = paying_impressions[~excluded[paying_impressions]]
        return np.sort(np.concatenate([*found, paying_impressions[:k]]).astype(np.int64))

    def _search(
        self, query_embedding: np.ndarray, head: int, mask: np.ndarray, k: int, excluded: np.ndarray | None
    ) -> np.ndarray:
        weights = np.zeros(self._num_heads, np.float32)
        weights[head] = 1.0
        allowed = mask if excluded is None else mask & ~excluded
        return self._index.search(query_embedding, weights, k, allowed)
