"""The latest state of every ad that the log of updates names, as columns: what takedowns, bids and budgets stand.

Shapes: N ads, in the order in which the log first named them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET

from contracts.records import STATUSES
from indexing.update_record import Update

NO_STATUS = -1
_STATUS_CODES = {name: code for code, name in enumerate(STATUSES)}
_UNKNOWN = _STATUS_CODES["removed"]  # what a later version may write is not served


@dataclass(frozen=True)
class States:
    """Latest state of some ads [N]; a ``seq`` of 0 tells that the log says nothing of it.

    Args:
        status: Code, ``NO_STATUS`` where nothing is said; int8.
        bids: float64; NaN where there is none.
        taken_down, spent: bool.
        status_seq, status_at, bid_seq, bid_at: Number and time of the update that said so, int64.
    """

    status: np.ndarray
    status_seq: np.ndarray
    status_at: np.ndarray
    bids: np.ndarray
    bid_seq: np.ndarray
    bid_at: np.ndarray
    taken_down: np.ndarray
    spent: np.ndarray


class AdStates:
    """Takes in updates in the order of the log; the latest of each field stands."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.ids: list[str] = []
        self._status, self._taken_down, self._spent = array("b"), array("b"), array("b")
        self._bids = array("d")
        self._status_seq, self._status_at = array("q"), array("q")
        self._bid_seq, self._bid_at = array("q"), array("q")

    def __len__(self) -> int:
        return len(self.ids)

    def slot(self, ad_id: str) -> int:
        """The place of an ad; new ones are added, without a state."""
        slot = self.slots.get(ad_id)
        if slot is None:
            slot = self.slots[ad_id] = len(self.ids)
            self.ids.append(ad_id)
            self._status.append(NO_STATUS)
            self._bids.append(np.nan)
            for column in (self._taken_down, self._spent, self._status_seq, self._status_at, self._bid_seq):
                column.append(0)
            self._bid_at.append(0)
        return slot

    def take_in(self, update: Update) -> int:
        """Note the state that an update sets; returns the ad's place."""
        return self.take_in_all([update])[0]

    def take_in_all(self, updates: Sequence[Update]) -> list[int]:
        """Note the states that updates set, in their order; returns the place of each one's ad."""
        slots, bids, bid_seq, bid_at = self.slots, self._bids, self._bid_seq, self._bid_at
        places = []
        for update in updates:
            slot = slots.get(update.ad_id)
            if slot is None:
                slot = self.slot(update.ad_id)
            places.append(slot)
            bid = update.bid
            if bid is not UNSET:
                bids[slot] = np.nan if bid is None else bid
                bid_seq[slot], bid_at[slot] = update.seq, update.at
            if update.status is not None:
                self._status[slot] = _STATUS_CODES.get(update.status, _UNKNOWN)
                self._status_seq[slot], self._status_at[slot] = update.seq, update.at
            if update.takedown is not None:
                self._taken_down[slot] = update.takedown
            if update.budget is not UNSET:
                self._spent[slot] = update.budget is not None and update.budget <= 0
        return places

    def at(self, slots: np.ndarray) -> States:
        """The states of ads by place [N]."""

        def column(values: array, dtype: type) -> np.ndarray:
            return np.frombuffer(values, dtype)[slots] if len(values) else np.zeros(0, dtype)

        return States(
            status=column(self._status, np.int8),
            status_seq=column(self._status_seq, np.int64),
            status_at=column(self._status_at, np.int64),
            bids=column(self._bids, np.float64),
            bid_seq=column(self._bid_seq, np.int64),
            bid_at=column(self._bid_at, np.int64),
            taken_down=column(self._taken_down, np.bool_),
            spent=column(self._spent, np.bool_),
        )
