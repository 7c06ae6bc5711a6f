"""Writes rows and states into the mapped files of an overlay, in the order that ``overlay_writer`` promises readers.

Shapes: N ads, A ads of the index.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from indexing.ad_states import States
from indexing.embed import EmbeddedAds
from indexing.index import Index
from indexing.overlay_content import EmbeddedContent, NewAd
from indexing.overlay_effect import AdRows, Effect
from indexing.overlay_files import GONE, NEWEST, OverlayArrays, append_texts, reserve_rows
from indexing.overlay_header import NOTES

_BLOCK_ROWS = 4096
_NO_OBJECTIVE = -1


@dataclass(frozen=True)
class NewRow:
    """A row to append: the ad's place, what is new, and where its embedding is; without one the ad is gone."""

    slot: int
    ad: NewAd
    embedded: tuple[EmbeddedContent, int] | None


class RowWriter:
    """Writes one overlay.

    Args:
        arrays: Mapped for writing.
        index: Whose overlay it is.
    """

    def __init__(self, arrays: OverlayArrays, index: Index) -> None:
        self.arrays, self._index, self._num_ads = arrays, index, len(index)
        self._reserved = arrays.num_rows
        self._is_rebid = np.zeros(self._num_ads, np.bool_)
        self._is_rebid[arrays.rebid[: arrays.num_rebid]] = True

    def set_states(self, slots: np.ndarray, ads: AdRows, effect: Effect) -> None:
        """Show the states of ads [N] in their row of the index and in their newest row here."""
        servable = effect.servable & ~ads.gone[slots]
        for rows, offset in ((ads.base[slots], 0), (ads.own[slots], self._num_ads)):
            has_row = rows >= 0
            self._set(rows[has_row] + offset, servable, effect, has_row)
        base = ads.base[slots]
        self._note_bids(base[base >= 0], effect.bids[base >= 0])

    def count_stopped(self, states: States, ads: AdRows) -> None:
        """Note how many ads that a look-up finds are taken down, and how many of the others have no budget left."""
        found = ads.are_found()
        self.arrays.header["taken_down"][0] = np.count_nonzero(states.taken_down & found)
        self.arrays.header["without_budget"][0] = np.count_nonzero(states.spent & ~states.taken_down & found)

    def append(self, rows: Sequence[NewRow], ads: AdRows, effect: Effect) -> None:
        """Append rows [N] and let them take the place of those before.

        Raises:
            AdsieveError: The disk is full; nothing that readers see has changed.
        """
        arrays, first, stop = self.arrays, self.arrays.num_rows, self.arrays.num_rows + len(rows)
        if stop > self._reserved:
            reserved = min(stop + _BLOCK_ROWS, arrays.capacity)
            reserve_rows(arrays, self._index, self._reserved, reserved)
            self._reserved = reserved
        append_texts(arrays, [(row.ad.ad_id, row.ad.content.advertiser_id) for row in rows])
        places, slots = np.arange(first, stop), np.array([row.slot for row in rows], np.int64)
        self._write_values(rows, places)
        gone = arrays.rows["is_gone"][places]
        self._set(places + self._num_ads, effect.servable & ~gone, effect, np.ones(len(places), np.bool_))
        arrays.newest[places + self._num_ads] = np.where(gone, GONE, NEWEST)
        arrays.header["num_rows"][0] = stop
        before = ads.own[slots]
        superseded = np.concatenate([before[before >= 0], places])
        of_slots = np.concatenate([slots[before >= 0], slots])
        ads.own[slots], ads.gone[slots] = places, gone  # in order, so that the last one stands
        self._link(superseded, of_slots, ads)
        self.set_states(slots, ads, effect)

    def complete(self, slots: np.ndarray, ads: AdRows) -> None:
        """Make good what a writer that was killed left half-done; ``slots`` [num_rows] are the ads of all rows."""
        self.arrays.stale[self.arrays.rebid[: self.arrays.num_rebid]] = True
        self._link(np.arange(len(slots)), slots, ads)

    def moved_to(self, larger: OverlayArrays, kept: np.ndarray, ads: AdRows) -> "RowWriter":
        """Copy everything but superseded rows; the places of ``kept`` rows in ``ads`` become those there.

        Raises:
            AdsieveError: The disk is full.
        """
        old, count = self.arrays, len(kept)
        reserve_rows(larger, self._index, 0, count)
        texts = old.texts(0, old.num_rows)
        append_texts(larger, [texts[row] for row in kept.tolist()])
        for name, column in larger.rows.items():
            if name != "text-ends":
                column[:count] = old.rows[name][kept]
        for name in ("servable", "withdrawn", "taken_down", "has_bid", "bids", "objectives", "newest"):
            values, new = getattr(old, name), getattr(larger, name)
            new[: self._num_ads] = values[: self._num_ads]
            new[self._num_ads : self._num_ads + count] = values[self._num_ads + kept]
        larger.stale[:], larger.rebid[:] = old.stale, old.rebid
        larger.header["num_rebid"], larger.header["num_rows"] = old.num_rebid, count
        if old.position is not None:
            larger.advance(old.position.log, old.position.seq)
        for name in NOTES:
            larger.header[name] = old.header[name]
        moved = RowWriter(larger, self._index)
        place = np.full(old.num_rows, -1, np.int32)
        place[kept] = np.arange(count)
        slots = np.flatnonzero(ads.own[: len(ads)] >= 0)
        ads.own[slots] = place[ads.own[slots]]
        moved.complete(slots[np.argsort(ads.own[slots])], ads)
        return moved

    def _write_values(self, rows: Sequence[NewRow], places: np.ndarray) -> None:
        """All of the new rows but their state; no reader looks at them yet."""
        own = self.arrays.rows
        own["seq"][places] = [row.ad.seq for row in rows]
        own["valid_from"][places] = [row.ad.content.valid_from for row in rows]
        own["is_gone"][places] = [row.embedded is None for row in rows]
        own["is_here"][places] = False
        self.arrays.objectives[places + self._num_ads] = _NO_OBJECTIVE
        parts = {id(row.embedded[0]): row.embedded[0] for row in rows if row.embedded is not None}
        for key, part in parts.items():
            mine = [
                (place, row.embedded[1])
                for place, row in zip(places.tolist(), rows, strict=True)
                if row.embedded is not None and id(row.embedded[0]) == key
            ]
            targets, sources = np.array(mine).T
            for name, values in _stored(part.ads).items():
                own[name][targets] = values[sources]
            self.arrays.objectives[targets + self._num_ads] = part.objectives[sources]

    def _set(self, rows: np.ndarray, servable: np.ndarray, effect: Effect, chosen: np.ndarray) -> None:
        """Write the states of the chosen ones of N ads, bool [N], into ``rows``, one for each of them."""
        arrays, bids = self.arrays, effect.bids[chosen]
        arrays.taken_down[rows] = effect.taken_down[chosen]
        arrays.withdrawn[rows] = effect.withdrawn[chosen]
        arrays.servable[rows] = servable[chosen]
        arrays.bids[rows] = bids
        arrays.has_bid[rows] = ~np.isnan(bids)

    def _note_bids(self, rows: np.ndarray, bids: np.ndarray) -> None:
        """Take rows of the index whose bid is another out of its search."""
        indexed = self._index.bids[rows]
        differs = (bids != indexed) & ~(np.isnan(bids) & np.isnan(indexed)) & ~self._is_rebid[rows]
        new = rows[differs]
        if len(new) == 0:
            return
        start = self.arrays.num_rebid
        self.arrays.rebid[start : start + len(new)] = new
        self.arrays.header["num_rebid"][0] = start + len(new)
        self.arrays.stale[new] = True
        self._is_rebid[new] = True

    def _link(self, places: np.ndarray, slots: np.ndarray, ads: AdRows) -> None:
        """Let rows here, and the index's row of their ads, point to the newest row of each ad."""
        newest, gone = ads.own[slots], ads.gone[slots]
        target = np.where(gone, GONE, newest + self._num_ads + 1)
        is_newest = places == newest
        base = ads.base[slots]
        self.arrays.newest[base[base >= 0]] = target[base >= 0]
        self.arrays.stale[base[base >= 0]] = True
        self.arrays.newest[places + self._num_ads] = np.where(is_newest & ~gone, NEWEST, target)
        self.arrays.rows["is_here"][places] = is_newest & ~gone


def _stored(ads: EmbeddedAds) -> dict[str, np.ndarray]:
    stored = {"vectors": ads.vectors, "bias": ads.bias}
    if ads.scales is not None:
        stored["scales"] = ads.scales
    if ads.heavy is not None:
        stored |= {"heavy-ids": ads.heavy.ids, "heavy-floats": ads.heavy.floats}
    return stored
