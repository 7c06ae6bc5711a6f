"""Exhaustive scores of the few ads that the search of an index knows as they were.

The same measure as the search's own: ``log bid + w_h logit_h``, h being the head that the ad's objective pays for; see
``indexing.retrieval``. Shapes: K ads, H heads, D width of a head's vector.
"""

import numpy as np

from indexing.index import Pins
from indexing.retrieval import IMPRESSION, log_bid
from towers.serving import score

FEW, FEW_SHARE = 16, 0.015


def search_scores(
    pins: Pins, bids: np.ndarray, heads: np.ndarray, query_embedding: np.ndarray, head_weights: np.ndarray | None
) -> np.ndarray:
    """Scores of K ads, float32 [K]; minus infinity where the weight of an ad's head is 0.

    Args:
        pins: [K, ...].
        bids: float32 [K]; NaN counts as 1.
        heads: The head that each ad's objective pays for, or ``IMPRESSION``, int [K].
        query_embedding: [H, D+2].
        head_weights: w [H]; None is 1 for all.
    """
    weights = np.ones(len(query_embedding)) if head_weights is None else np.asarray(head_weights)
    logits = score(query_embedding, pins.vectors, pins.bias, pins.scales)
    paid = heads != IMPRESSION
    of_head = np.where(paid, heads, 0)
    weight = weights[of_head]
    scores = log_bid(bids) + np.where(paid, weight * logits[np.arange(len(logits)), of_head], 0)
    return np.where(paid & (weight == 0), -np.inf, scores).astype(np.float32)


def is_few(allowed: np.ndarray) -> bool:
    """Whether so few ads may be found that scoring each costs less than looking for them among all."""
    return bool(np.count_nonzero(allowed) <= max(FEW, FEW_SHARE * len(allowed)))


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Places of the ``k`` largest finite scores, best first."""
    usable = np.flatnonzero(np.isfinite(scores))
    if len(usable) > k:
        usable = usable[np.argpartition(-scores[usable], k - 1)[:k]] if k else usable[:0]
    return usable[np.argsort(-scores[usable], kind="stable")]
