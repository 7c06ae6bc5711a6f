"""The few ads that the search of an index knows as they were or not at all, and their exhaustive scores.

The same measure as the search's own: ``log bid + w_h logit_h``, h being the head that the ad's objective pays for; see
``indexing.retrieval``. Rows below A are the index's, the others its overlay's. Shapes: A ads of the index, K ads, H
heads, D width of a head's vector.
"""

import numpy as np

from indexing.index import Pins
from indexing.overlay_files import NEWEST, OverlayArrays
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


def current_rows(overlay: OverlayArrays, rows: np.ndarray) -> np.ndarray:
    """Those rows that are here and were not superseded."""
    if not overlay.num_rows:
        return rows
    num_ads = len(overlay.stale)
    # The writer marks a row as here after it has marked those that it supersedes: read in this order.
    own = rows[rows >= num_ads]
    own = own[overlay.rows["is_here"][own - num_ads].astype(bool)]
    rows = np.concatenate([rows[rows < num_ads], own])
    return rows[overlay.newest[rows] == NEWEST]


def extra_rows(overlay: OverlayArrays, fresh: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Rows that the index's own search does not find: current ones of the overlay, and those of another bid.

    Args:
        fresh: Whether the search knows a row of the index as it is, bool [A].
        allowed: Which rows may be found, bool; those of the overlay that it does not reach to are too new.
    """
    num_ads = len(fresh)
    # The writer marks a row as here after it has marked those that it supersedes: read in this order.
    own = np.flatnonzero(overlay.rows["is_here"][: len(allowed) - num_ads]) + num_ads
    rebid = overlay.rebid[: overlay.num_rebid]
    rows = np.concatenate([rebid[~fresh[rebid]], own])
    rows = rows[overlay.newest[rows] == NEWEST]
    return rows[allowed[rows]]
