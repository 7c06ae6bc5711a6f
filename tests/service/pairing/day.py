"""What may be seen of every ad while a request runs: its states from the last update in effect to the last one made."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import UNSET

from indexing.update_record import Update


@dataclass(frozen=True)
class AdState:
    """One ad between two updates. ``features`` are raw; an ad of which there is none was never heard of."""

    scenario: str | None = None
    objective: str | None = None
    features: dict | None = None
    status: str = "active"
    bid: float | None = None
    is_taken_down: bool = False
    is_spent: bool = False

    @property
    def content(self) -> tuple[str | None, dict | None]:
        return self.objective, self.features

    @property
    def is_servable(self) -> bool:
        return self.status == "active" and not self.is_taken_down and not self.is_spent and self.bid is not None

    def is_of(self, scenario: str) -> bool:
        """Whether it is an ad of the scenario."""
        return self.scenario == scenario and self.features is not None

    def after(self, update: Update) -> "AdState":
        """The state with an update in effect that is later than all before."""
        changes: dict[str, Any] = {}
        if update.content is not None:
            new = update.content
            changes |= {"scenario": new.scenario, "objective": new.objective, "features": new.features}
        if update.status is not None:
            changes["status"] = update.status
        if update.bid is not UNSET:
            changes["bid"] = update.bid
        if update.takedown is not None:
            changes["is_taken_down"] = update.takedown
        if update.budget is not UNSET:
            changes["is_spent"] = update.budget is not None and update.budget <= 0
        return replace(self, **changes)


@dataclass
class Day:
    """The ads of a scenario through a day. ``in_effect`` updates are surely in effect wherever a request looks.

    Args:
        scenario: What requests ask for.
        catalogue: Rows of the ads dataset.
        columns: Names of their features.
    """

    scenario: str
    catalogue: Sequence[dict]
    columns: Sequence[str]
    in_effect: int = 0
    num_made: int = 0
    histories: dict[str, list[tuple[int, AdState]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for ad in self.catalogue:
            features = {name: ad[name] for name in self.columns}
            about = {name: ad[name] for name in ("scenario", "objective", "status", "bid")}
            self.histories[ad["ad_id"]] = [(0, AdState(features=features, **about))]

    def make(self, update: Update) -> None:
        """Expect an update, before it is given to the store."""
        with self.lock:
            self.num_made += 1
            history = self.histories.setdefault(update.ad_id, [(0, AdState())])
            history.append((self.num_made, history[-1][1].after(update)))

    def last_update(self, ad_id: str) -> int:
        """Number of the last update of an ad; 0 for none."""
        return self.histories.get(ad_id, [(0, None)])[-1][0]

    def window(self, ad_id: str, begin: int, end: int) -> list[AdState]:
        """The states of an ad from when ``begin`` updates were in effect to when ``end`` were made."""
        with self.lock:
            history = [(seq, state) for seq, state in self.histories.get(ad_id, [(0, AdState())]) if seq <= end]
        last_before = max(seq for seq, _ in history if seq <= begin)
        return [state for seq, state in history if seq >= last_before]
