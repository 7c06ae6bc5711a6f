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


def rows_here(overlay: OverlayArrays, num_rows: int) -> np.ndarray:
    """Which rows of the overlay are here, bool; of the first ``num_rows`` rows, those of the index included.

    The writer marks what a row supersedes and then that the row is here. A search reads the latter first: it then finds
    no ad twice, and one whose newer row came meanwhile is told by :func:`is_current` to be still as it was.
    """
    return overlay.rows["is_here"][: max(num_rows - len(overlay.stale), 0)].astype(bool)


def is_current(overlay: OverlayArrays, rows: np.ndarray, here: np.ndarray) -> np.ndarray:
    """Whether rows [K] have not been superseded by one that is here, bool [K].

    Args:
        here: As :func:`rows_here` gave it before.
    """
    newest = overlay.newest[rows]
    own = newest.astype(np.int64) - 1 - len(overlay.stale)
    is_coming = own >= len(here)
    known = np.flatnonzero((own >= 0) & ~is_coming)
    is_coming[known] = ~here[own[known]]
    current: np.ndarray = (newest == NEWEST) | is_coming
    return current


def current_rows(overlay: OverlayArrays, rows: np.ndarray, here: np.ndarray) -> np.ndarray:
    """Those rows that are here and were not superseded.

    Args:
        here: As :func:`rows_here` gives it, of the rows among which these were chosen.
    """
    num_ads = len(overlay.stale)
    own = rows[rows >= num_ads]
    rows = np.concatenate([rows[rows < num_ads], own[here[own - num_ads]]])
    return rows[is_current(overlay, rows, here)]


def extra_rows(overlay: OverlayArrays, fresh: np.ndarray, allowed: np.ndarray, here: np.ndarray) -> np.ndarray:
    """Rows that the index's own search does not find: current ones of the overlay, and those of another bid.

    Args:
        fresh: Whether the search knows a row of the index as it is, bool [A].
        allowed: Which rows may be found, bool; those of the overlay that it does not reach to are too new.
        here: As :func:`rows_here` gives it, of as many rows as ``allowed``.
    """
    known = np.concatenate([overlay.rebid[: overlay.num_rebid], _changing_rows(overlay, here)])
    rows = np.concatenate([np.unique(known[~fresh[known]]), np.flatnonzero(here) + len(fresh)])
    rows = rows[is_current(overlay, rows, here)]
    return rows[allowed[rows]]


def _changing_rows(overlay: OverlayArrays, here: np.ndarray) -> np.ndarray:
    """Rows of the index that have a newer one; none where all of these are here, as nearly always."""
    num_ads = len(overlay.stale)
    own = overlay.newest[num_ads : num_ads + len(here)]
    if overlay.num_rows > len(here) or (~here & (own == NEWEST)).any():
        return np.flatnonzero(overlay.newest[:num_ads] > num_ads)
    return np.zeros(0, np.int64)
