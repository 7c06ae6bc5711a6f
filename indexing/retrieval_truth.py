"""What ought to be found and what an exhaustive search finds, for some requests, over all ads, in bounded memory.

An ad's utility is ``bid * sigmoid(logit)`` of the head that its objective pays for, or its bid where that pays for the
impression; a search orders by ``log bid + w logit + offset`` instead, see ``indexing.tangent``. The logarithm of the
utility lies between ``log bid + min(logit, 0) - log 2`` and ``log bid + min(logit, 0)``, so that it is computed only
where this is not too small.

Shapes: N ads of a piece, R requests, K kept ads of a request, D width of a head's vector.
"""

from dataclasses import dataclass

import numpy as np

_ONE_THREAD = 1 << 18
"""Multiplications of a product that OpenBLAS takes on the thread that asks for it (``interface/gemm.c``)."""


@dataclass(frozen=True)
class Scored:
    """Scores of some ads for some requests. Arrays of one length."""

    requests: np.ndarray
    ads: np.ndarray
    scores: np.ndarray


class Best:
    """The ads of largest score of each request, best first; the smaller number is the better among equals.

    ``ads`` is int64 [R, K], -1 where there are fewer; ``scores`` float64 [R, K].
    """

    def __init__(self, num_requests: int, k: int) -> None:
        self._k = k
        self.ads = np.full((num_requests, k), -1, np.int64)
        self.scores = np.full((num_requests, k), -np.inf)

    def least(self, scores: np.ndarray) -> np.ndarray:
        """What a score must reach [R] to be kept, where others of scores [N, R] are offered with it.

        Other threads may ask while one calls :meth:`keep`: what is kept only gets better.
        """
        kept = self.scores[:, -1]
        if len(scores) <= self._k or np.isfinite(kept).all():
            return kept
        return np.maximum(kept, -np.partition(-scores, self._k - 1, axis=0)[self._k - 1])

    def keep(self, found: Scored) -> None:
        """Keep the best of these and of what was kept."""
        order = np.argsort(found.requests, kind="stable")
        edges = np.searchsorted(found.requests[order], np.arange(len(self.ads) + 1))
        for request in np.flatnonzero(np.diff(edges)).tolist():
            mine = order[edges[request] : edges[request + 1]]
            ads = np.concatenate([self.ads[request], found.ads[mine]])
            scores = np.concatenate([self.scores[request], found.scores[mine]])
            best = np.lexsort((ads, -scores))[: self._k]
            self.ads[request], self.scores[request] = ads[best], scores[best]

    def keep_for_all(self, ads: np.ndarray, scores: np.ndarray) -> None:
        """Keep ads [N] whose scores are the same for every request."""
        requests = np.repeat(np.arange(len(self.ads)), len(ads))
        self.keep(Scored(requests, np.tile(ads, len(self.ads)), np.tile(scores, len(self.ads))))

    def keep_from(self, other: "Best", numbers: np.ndarray) -> None:
        """Keep what another one kept, under other numbers: ``numbers[ad]`` for each ad."""
        requests, places = np.nonzero(other.ads >= 0)
        self.keep(Scored(requests, numbers[other.ads[requests, places]], other.scores[requests, places]))


def by_utility(best: Best, logits: np.ndarray, log_bids: np.ndarray, ads: np.ndarray) -> Scored:
    """Those ads of a piece that may be among the best by exact utility, with its logarithm.

    Args:
        logits: Of the head that the ads pay for [N, R].
        log_bids: [N].
        ads: Their numbers [N].
    """
    bounds = np.minimum(logits, 0) + log_bids[:, None]
    places, requests = _places(bounds >= best.least(bounds - np.float32(np.log(2))))
    kept = logits[places, requests].astype(np.float64)
    return Scored(requests, ads[places], log_bids[places] - np.logaddexp(0, -kept))


def by_search(
    best: Best, logits: np.ndarray, log_bids: np.ndarray, ads: np.ndarray, weights: np.ndarray, offsets: np.ndarray
) -> Scored:
    """Those ads of a piece that an exhaustive search may find.

    Args:
        weights: Of the head, for each request [R].
        offsets: Likewise, added to each score [R].
    """
    scores = logits * weights + (log_bids[:, None] + offsets)
    places, requests = _places(scores >= best.least(scores))
    return Scored(requests, ads[places], scores[places, requests].astype(np.float64))


def logits_of(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Logits [N, R] of rows [N, D+1] for the query embeddings [R, D+2] of their head.

    The product is taken of a few rows at a time: of more, OpenBLAS would start threads beside those that call this, one
    for each core already, and they wait for work in a loop.
    """
    logits = np.empty((len(vectors), len(queries)), np.float32)
    weights = np.ascontiguousarray(queries[:, :-1].T)
    rows = max(_ONE_THREAD // max(weights.size, 1), 1)
    for start in range(0, len(vectors), rows):
        np.matmul(vectors[start : start + rows], weights, out=logits[start : start + rows])
    logits += queries[:, -1]
    return logits


def _places(kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As ``np.nonzero`` of a matrix, faster where little of it is true."""
    places, requests = np.divmod(np.flatnonzero(kept), kept.shape[1])
    return places, requests
