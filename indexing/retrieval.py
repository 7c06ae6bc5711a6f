"""Ads for a request that names none: a FAISS search for the largest ``log bid + logit`` of what the bid buys.

Utility is bid times probability, and the logarithm of a small probability is its logit but for a term of about the
probability's own size. So ``log bid(a) + w_h logit_h(q, a)``, with h the head that the ad's objective pays for, orders
ads nearly as utility does, and it is an inner product::

    [w_h q_h, w_h, 1] . [v_a, b_a, log bid(a)]  +  w_h c_h        q_h, v_a of D dimensions; b_a and c_h the biases

Ads are grouped by head, one index of D + 2 dimensions a head, each ad stored once: a flat index, or inverted lists of
which a search looks into some (``indexing.retrieval_build`` chooses). Ads that pay for the impression need no search:
their bid orders them. The caller takes more than it needs and ranks them by exact utility.

The files are FAISS's own and are mapped, so that workers share them. Shapes: A ads, H heads, D width of a head's
vector.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from contracts.errors import ArtifactError
from indexing.arrays import map_array
from indexing.retrieval_gpu import GpuSearch
from indexing.retrieval_group import Allowed, Group

IMPRESSION = -1
LOWEST_LOG_BID = -100.0
_FIRST_LOOK = 4096


class Retrieval:
    """The groups of an index, mapped. May be searched by several threads."""

    def __init__(self, groups: dict[int, Group], impression_rows: np.ndarray, impression_log_bids: np.ndarray) -> None:
        self.groups, self._impression_rows, self._log_bids = groups, impression_rows, impression_log_bids

    @classmethod
    def open(cls, directory: Path, *, num_heads: int, head_dim: int) -> "Retrieval":
        """Map the files that ``indexing.retrieval_writer`` and ``indexing.retrieval_build`` wrote.

        Raises:
            ArtifactError: A file is missing or does not fit the others.
        """
        groups = {head: Group.open(directory, head, head_dim + 2) for head in range(num_heads)}
        try:
            rows, log_bids = (map_array(directory / f"impression{part}.npy") for part in ("", "-log-bids"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{directory}: not the retrieval block of an index: {error}") from error
        if len(rows) != len(log_bids):
            raise ArtifactError(f"{directory}: {len(rows)} ads that pay for the impression, {len(log_bids)} bids")
        return cls(groups, rows, log_bids)

    def __len__(self) -> int:
        return len(self._impression_rows) + sum(len(group) for group in self.groups.values())

    def on_gpu(self) -> "Retrieval":
        """The same groups with their vectors on the first GPU, searched there; see ``indexing.retrieval_gpu``."""
        groups = {head: replace(group, device=GpuSearch(group.index)) for head, group in self.groups.items()}
        return Retrieval(groups, self._impression_rows, self._log_bids)

    def best_impressions(self, k: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The best ads that pay for the impression: looks from the highest bid down, no further than it must."""
        look, places = max(k, _FIRST_LOOK), np.arange(min(k, len(self._impression_rows)))
        while allowed is not None:
            places = np.flatnonzero(allowed[self._impression_rows[:look]])[:k]
            if len(places) == k or look >= len(self._impression_rows):
                break
            look *= 8
        return self._impression_rows[places].astype(np.int64), self._log_bids[places]

    def search(
        self, query_embedding: np.ndarray, head_weights: np.ndarray | None, k: int, allowed: np.ndarray | None
    ) -> np.ndarray:
        """Return at most ``k`` rows, best first; see ``indexing.index.Index.search``."""
        weights = np.ones(len(query_embedding)) if head_weights is None else head_weights
        found = [self.best_impressions(k, allowed)]
        among = None if allowed is None else Allowed.of(allowed)
        for head, group in self.groups.items():
            if weights[head] != 0:
                found.append(group.search(query_embedding[head], float(weights[head]), k, among))
        rows, scores = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows[np.argsort(-scores, kind="stable")[:k]]


def log_bid(bids: np.ndarray) -> np.ndarray:
    """Logarithm of bids, finite: a missing bid counts as 1; what cannot be bid (negative, infinite) is worth least.

    Example:
        >>> log_bid(np.array([1.0, np.nan, 0.0, -2.0])).tolist()
        [0.0, 0.0, -100.0, -100.0]
    """
    usable = np.isfinite(bids) & (bids > 0)
    logs = np.log(bids, out=np.full(len(bids), LOWEST_LOG_BID, np.float32), where=usable)
    return np.where(np.isnan(bids), np.float32(0), np.maximum(logs, np.float32(LOWEST_LOG_BID)))
