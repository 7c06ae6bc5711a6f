"""The ads that releases rank, those that nobody ranks with the reason why, and what an ad without a bid counts as.

Shapes: C candidates, P those of one pool.
"""

from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np

from contracts import compiled
from indexing.id_texts import chosen_texts
from service.api import Dropped
from service.settings import Settings


class Reason(IntEnum):
    """Why a candidate is not ranked; the names are those of ``Dropped``."""

    KEPT = 0
    DUPLICATE = 1
    UNKNOWN = 2
    SCENARIO = 3
    INACTIVE = 4
    FILTERED = 5
    BID = 6


_NAMES = tuple(reason.name.lower() for reason in Reason)


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The ads that one release ranks.

    ``positions`` [P] are ascending places in the request, or in what was retrieved; ``rows`` [P] rows of the index, -1
    for an unknown ad that is scored; ``bids`` float64 [P]; ``objectives`` [P] codes of the release.
    """

    positions: np.ndarray
    rows: np.ndarray
    bids: np.ndarray
    objectives: np.ndarray


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """One pool for each release, and the reason of every candidate [C]; empty for retrieved ads."""

    pools: list[Pool]
    reasons: np.ndarray

    def dropped(self, ids: Sequence[str]) -> Dropped:
        """The ids of what is not ranked, by reason."""
        places, ends = _by_reason(self.reasons)
        if len(places) == 0:
            return Dropped()
        bounds = zip(_NAMES, [0, *ends], ends, strict=False)
        return Dropped(**{name: chosen_texts(ids, places[start:end]) for name, start, end in bounds if end > start})


def _by_reason(reasons: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Places of what is not kept, those of one reason together, and where those of each reason end."""
    if (kernels := compiled.kernels()) is None:
        places = np.flatnonzero(reasons)
        places = places[np.argsort(reasons[places], kind="stable")]
        return places, np.searchsorted(reasons[places], np.arange(len(_NAMES)), side="right").tolist()
    places, ends = np.empty(len(reasons), np.int64), np.empty(len(_NAMES), np.int64)
    count = kernels.by_reason(reasons, places, ends)
    return places[:count], ends.tolist()


def fill_bids(pools: list[Pool], reasons: np.ndarray, settings: Settings) -> list[Pool]:
    """Settle what an ad without any bid counts as; all pools together, as they compete."""
    if not any(np.isnan(pool.bids).any() for pool in pools):
        return pools
    bids = np.concatenate([pool.bids for pool in pools])
    present = bids[~np.isnan(bids)]
    if len(present) == 0 or settings.missing_bids == "median":
        stand_in = 1.0 if len(present) == 0 else float(np.median(present))
        return [_replaced(pool, bids=np.where(np.isnan(pool.bids), stand_in, pool.bids)) for pool in pools]
    for pool in pools:
        reasons[pool.positions[np.isnan(pool.bids)]] = Reason.BID
    return [_taken(pool, ~np.isnan(pool.bids)) for pool in pools]


def _replaced(pool: Pool, *, bids: np.ndarray) -> Pool:
    return Pool(positions=pool.positions, rows=pool.rows, bids=bids, objectives=pool.objectives)


def _taken(pool: Pool, kept: np.ndarray) -> Pool:
    return Pool(
        positions=pool.positions[kept], rows=pool.rows[kept], bids=pool.bids[kept], objectives=pool.objectives[kept]
    )
