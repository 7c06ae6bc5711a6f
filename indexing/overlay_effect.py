"""What the latest states of ads make of their rows, and which rows an ad has; the rules are in ``update_record``.

Shapes: N ads, A ads of the index.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from indexing.ad_states import States
from indexing.index import Index
from indexing.overlay_files import ACTIVE

NEVER = -(1 << 62)
"""Earlier than any content."""

NO_ROW = -1


@dataclass(frozen=True)
class Effect:
    """What requests see of some ads.

    Args:
        servable: Bool [N].
        withdrawn: Taken down, or without budget, whatever the status: never to be shown, bool [N].
        taken_down: Taken down, with budget left or not, bool [N].
        bids: float32 [N]; NaN where there is none.
    """

    servable: np.ndarray
    withdrawn: np.ndarray
    taken_down: np.ndarray
    bids: np.ndarray


def effect(states: States, base: np.ndarray, index: Index, merged: int) -> Effect:
    """Combine the latest states of ads with what the index says of them.

    Args:
        states: [N].
        base: The ads' rows of the index, ``NO_ROW`` where it has none, [N].
        merged: Number of the last update that the index has merged.
    """
    known = base >= 0
    rows = np.where(known, base, 0)
    valid_from = index.valid_from[rows]

    def counts(seq: np.ndarray, at: np.ndarray) -> np.ndarray:
        return (seq > 0) & (~known | (seq > merged) | (at > valid_from))

    status = np.where(known, index.status[rows], ACTIVE)
    status = np.where(counts(states.status_seq, states.status_at), states.status, status)
    bids = np.where(known, index.bids[rows], np.nan)
    bids = np.where(counts(states.bid_seq, states.bid_at), states.bids, bids)
    withdrawn = states.taken_down | states.spent
    return Effect((status == ACTIVE) & ~withdrawn, withdrawn, states.taken_down, bids.astype(np.float32))


class AdRows:
    """The rows of every ad that the log names, by its place in ``AdStates``.

    Columns: ``base`` row of the index, ``own`` newest row of the overlay (``NO_ROW`` for none), ``valid_from`` of the
    newest content, ``gone`` whether that content is of another scenario.
    """

    def __init__(self, index: Index) -> None:
        self._index, self._count = index, 0
        self.base, self.own = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.valid_from, self.gone = np.zeros(0, np.int64), np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return self._count

    def is_found(self, slot: int) -> bool:
        """Whether a look-up finds the ad."""
        return bool((self.base[slot] >= 0 or self.own[slot] >= 0) and not self.gone[slot])

    def are_found(self) -> np.ndarray:
        """Of all ads, whether a look-up finds them, bool [N]."""
        every = slice(len(self))
        return ((self.base[every] >= 0) | (self.own[every] >= 0)) & ~self.gone[every]

    def extend(self, ids: Sequence[str]) -> None:
        """Find the rows of the ads that come next."""
        if not ids:
            return
        base = self._index.id_table.lookup(ids)
        start, self._count = self._count, self._count + len(ids)
        if self._count > len(self.base):
            size = max(self._count, 2 * len(self.base))
            self.base, self.own = _resized(self.base, size), _resized(self.own, size)
            self.valid_from, self.gone = _resized(self.valid_from, size), _resized(self.gone, size)
        new = slice(start, self._count)
        self.base[new], self.own[new], self.gone[new] = base, NO_ROW, False
        self.valid_from[new] = np.where(base >= 0, self._index.valid_from[np.maximum(base, 0)], NEVER)


def _resized(column: np.ndarray, size: int) -> np.ndarray:
    grown = np.zeros(size, column.dtype)
    grown[: len(column)] = column
    return grown
