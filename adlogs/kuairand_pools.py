"""Which videos could have been shown in a request of the converted log: a sample, or the most shown of its day.

Letters: N impressions, R requests.
"""

import numpy as np

from adlogs.kuairand_rows import Impressions
from contracts.errors import LogError

SAMPLED = 10  # unshown videos drawn a request, before repeats are left out

Pairs = tuple[np.ndarray, np.ndarray]
"""Position of the request and row of the video of each pair, int64; no pair comes twice."""


def choose_full(rows: Impressions, later: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw the requests that log their whole pool.

    Args:
        rows: All impressions.
        later: Those to draw from, bool [N]: the test part.
        count: Requests to draw.
        seed: Of the draw.

    Returns:
        Whether an impression belongs to such a request, bool [N].

    Raises:
        LogError: There are fewer requests.
    """
    keys = np.stack([rows.time_ms, rows.user])
    _, request = np.unique(keys, axis=1, return_inverse=True)
    request = request.reshape(-1)
    found = np.unique(request[later])
    if count > len(found):
        raise LogError(
            f"full requests: expected at most the {len(found):,} of the test part, got {count:,}",
            next_step="choose a lower --full-requests",
        )
    chosen = np.random.default_rng([seed, count]).choice(found, count, replace=False)
    return np.isin(request, chosen)


def unshown(
    shown: Impressions, shown_request: np.ndarray, full: np.ndarray, full_pool: int, random: np.random.Generator
) -> Pairs:
    """Pairs of one day that were not shown: a sample of each request, or its whole pool.

    Args:
        shown: All impressions of the day.
        shown_request: Position of the request of each, int64.
        full: Requests that log their whole pool, bool [R].
        full_pool: Size of such a pool, those shown included where they are among the day's most shown.
        random: Source of the draws.
    """
    request, video = sample_unshown(shown, shown_request, len(full), random)
    if not full.any():
        return request, video
    pool = most_shown(shown, full_pool)
    whole = np.repeat(np.flatnonzero(full), len(pool)), np.tile(pool, int(full.sum()))
    sampled = ~full[request]
    pairs = np.concatenate([request[sampled], whole[0]]), np.concatenate([video[sampled], whole[1]])
    kept = ~np.isin(_keys(*pairs), _keys(shown_request, shown.video))
    return pairs[0][kept], pairs[1][kept]


def most_shown(shown: Impressions, size: int) -> np.ndarray:
    """The videos shown most often on a day, at most ``size``; of equally many the earlier row of the catalogue."""
    counts = np.bincount(shown.video)
    order = np.lexsort((np.arange(len(counts)), -counts))[:size]
    return order[counts[order] > 0]


def sample_unshown(
    shown: Impressions, shown_request: np.ndarray, num_requests: int, random: np.random.Generator
) -> Pairs:
    """Draw about ten videos a request among those that anybody saw that day, none of them shown in the request.

    Args:
        shown: All impressions of one day.
        shown_request: Position of the request of each, int64.
        num_requests: R.
        random: Source of the draws.
    """
    active = np.unique(shown.video)
    step = int(active.max()) + 1
    drawn = active[random.integers(0, len(active), (num_requests, SAMPLED))]
    pairs = np.unique(np.arange(num_requests)[:, None] * step + drawn)
    pairs = pairs[~np.isin(pairs, shown_request * step + shown.video)]
    return pairs // step, pairs % step


def _keys(request: np.ndarray, video: np.ndarray) -> np.ndarray:
    """One number a pair; catalogues are far smaller than 2**32."""
    return request.astype(np.int64) << 32 | video.astype(np.int64)
