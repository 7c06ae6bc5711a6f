"""An index with the updates of the day in effect: what a request reads instead of the index itself.

Rows ``0..A-1`` are the index's, rows from A on those of its overlay: new and changed ads, in the order in which they
came. Rows are only appended, so a row that a request looked up stays what it is for as long as the object lives;
status, bid, takedown and budget of a row are always the latest ones. One process of the host writes the overlay
(``indexing.overlay_writer``), all map it; where no asked row is of the overlay, a gather reads from the index as if
there were none.

Shapes: A ads of the index, K rows or ids, H heads, D width of a head's vector.
"""

import threading
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np

from contracts.encoding import Encoded
from contracts.release import UpdatePosition
from contracts.schema import FeatureSchema
from indexing.arrays import joined_rows
from indexing.blocks import objective_heads
from indexing.id_keys import Keys, text_keys
from indexing.id_texts import texts_at
from indexing.index import Index, Pins
from indexing.live_search import best, current_rows, extra_rows, is_current, is_few, rows_here, search_scores
from indexing.overlay_files import ACTIVE, GONE, NEWEST, OverlayArrays, map_overlay
from indexing.overlay_header import Notes, notes_of
from indexing.overlay_texts import OverlayTexts

_NO_STATES = np.zeros(0, np.uint8)


class LiveIndex:
    """An index and the overlay of one host. May be read by several threads.

    Args:
        index: Opened.
        schema: Of the two-tower bundle that the index was built with.
        overlay: Its overlay, mapped; None for an index as it was built.
    """

    def __init__(self, index: Index, schema: FeatureSchema, overlay: OverlayArrays | None = None) -> None:
        self.index, self._overlay, self._num_ads = index, overlay, len(index)
        if overlay is None:
            self._servable = np.asarray(index.status) == ACTIVE
            self._has_bid = ~np.isnan(index.bids)
            self._bids, self._objectives = np.asarray(index.bids), np.asarray(index.objectives)
        else:
            self._servable, self._has_bid = overlay.servable, overlay.has_bid
            self._bids, self._objectives = overlay.bids, overlay.objectives
        self._index_has_bids = bool(self._has_bid[: self._num_ads].any())
        self._heads = np.array([*objective_heads(schema), 0])
        self._lock = threading.Lock()
        self._known = OverlayTexts()
        self.refresh()

    @classmethod
    def open(cls, index: Index, schema: FeatureSchema, directory: Path) -> "LiveIndex | None":
        """Map the overlay that this host's writer keeps in ``directory``; None where there is none that is sound yet.

        Ask :attr:`position` whether it has caught up with the log.
        """
        overlay = map_overlay(directory, index)
        return None if overlay is None else cls(index, schema, overlay)

    @property
    def position(self) -> UpdatePosition | None:
        """The last update in effect; None where there is no overlay, or no log."""
        return None if self._overlay is None else self._overlay.position

    @property
    def notes(self) -> Notes:
        """What is told of the updates in effect."""
        return Notes() if self._overlay is None else notes_of(self._overlay.header)

    @property
    def is_retired(self) -> bool:
        """Whether another overlay took the place of this one: open it anew. Rows of this one are not rows of that."""
        return self._overlay is not None and bool(self._overlay.header["retired"][0])

    @property
    def num_rows(self) -> int:
        """Rows that this object knows, those of superseded and lost ads included."""
        return self._num_ads + len(self._known.ids)

    def lookup(self, ids: Sequence[str], keys: Keys | None = None) -> np.ndarray:
        """The newest row of each ad, int32 [K]; -1 where it is unknown, or moved to another scenario.

        Args:
            keys: Of the ids, where they are known.
        """
        rows = self.index.id_table.lookup_keys(text_keys(ids) if keys is None else keys)
        overlay = self._overlay
        if overlay is None or overlay.num_rows == 0:
            return rows
        self.refresh()
        unknown = np.flatnonzero(rows < 0)
        for place, ad_id in zip(unknown.tolist(), texts_at(ids, unknown), strict=True):
            own = self._known.rows.get(ad_id)
            rows[place] = -1 if own is None else self._num_ads + own
        newest = overlay.newest[rows]
        changed = np.flatnonzero((newest != NEWEST) & (rows >= 0))
        rows[changed] = np.where(newest[changed] == GONE, -1, newest[changed] - 1)
        return rows

    def ids(self, rows: np.ndarray) -> list[str]:
        """Ids of rows [K]; IndexError where one is no row."""
        rows = np.asarray(rows)
        if not self._any_own(rows):
            return self.index.id_table.ids(rows)
        mine = rows >= self._num_ads
        found = np.empty(len(rows), object)
        found[~mine] = self.index.id_table.ids(rows[~mine])
        found[mine] = [self._known.ids[row] for row in (rows[mine] - self._num_ads).tolist()]
        return found.tolist()

    def servable(self, rows: np.ndarray) -> np.ndarray:
        """Whether ads are active, not taken down, and have budget left, bool [K]."""
        return self._servable[rows]

    def withdrawn(self, rows: np.ndarray) -> np.ndarray:
        """Why ads are never to be shown, int8 [K]: a place in ``overlay_files.WITHDRAWN``, 0 where they may be."""
        return np.zeros(len(rows), np.int8) if self._overlay is None else self._overlay.why_withdrawn(rows)

    def states(self, *, servable: bool) -> tuple[np.ndarray, int]:
        """The state of every row, uint8, and which one stops an ad; no states where none does.

        Args:
            servable: Stop all that is not servable, not only what is taken down or without budget.
        """
        if servable:
            return self._servable.view(np.uint8), 0
        return (_NO_STATES if self._overlay is None else self._overlay.withdrawn.view(np.uint8)), 1

    @property
    def all_bids(self) -> np.ndarray:
        """The bid of every row, float32; NaN where there is none."""
        return self._bids

    @property
    def all_objectives(self) -> np.ndarray:
        """The code of every row's objective, as in the index, int8; -1 where there is none."""
        return self._objectives

    def bids(self, rows: np.ndarray) -> np.ndarray:
        """Bids, float32 [K]; NaN where there is none."""
        return self._bids[rows]

    def objectives(self, rows: np.ndarray) -> np.ndarray:
        """Codes of objectives, as in the index, int8 [K]; -1 where there is none."""
        return self._objectives[rows]

    def valid_from(self, rows: np.ndarray) -> np.ndarray:
        """Since when the content of rows is valid, microseconds UTC, int64 [K]."""
        rows = np.asarray(rows)
        if not self._any_own(rows):
            return self.index.valid_from[rows]
        return joined_rows(self.index.valid_from, self._own()["valid_from"], rows)

    def excluded(self, advertisers: Sequence[str], rows: np.ndarray) -> np.ndarray | None:
        """Which ads belong to one of ``advertisers``, bool [K]; None where no ad that is known does."""
        codes, own_codes = self._advertiser_codes(advertisers)
        if len(codes) + len(own_codes) == 0:
            return None
        rows = np.asarray(rows)
        if not self._any_own(rows):
            return np.isin(self.index.advertisers[rows], codes)
        mine = rows >= self._num_ads
        found = np.empty(len(rows), bool)
        found[~mine] = np.isin(self.index.advertisers[rows[~mine]], codes)
        found[mine] = np.isin(self._known.advertisers[rows[mine] - self._num_ads], own_codes)
        return found

    def pins(self, rows: np.ndarray) -> Pins:
        """Vectors and biases [K, ...], as ``towers.serving.score`` reads them."""
        rows = np.asarray(rows)
        base = self.index.pins
        if not self._any_own(rows):
            return base.take(rows)
        own = self._own()
        scales = None if base.scales is None else joined_rows(base.scales, own["scales"], rows)
        return Pins(joined_rows(base.vectors, own["vectors"], rows), joined_rows(base.bias, own["bias"], rows), scales)

    def own_pins(self, rows: np.ndarray) -> Pins | None:
        """The pins of all of the index, where ``rows`` [K] are its own (or -1); None where the overlay has some."""
        return None if self._any_own(np.asarray(rows)) else self.index.pins

    def heavy(self, rows: np.ndarray) -> Encoded | None:
        """Encoded features for the heavy ranker [K]; None where the index has none."""
        rows = np.asarray(rows)
        block = self.index.heavy_ads
        if block is None:
            return None
        if not self._any_own(rows):
            return Encoded(block.ids[rows], block.floats[rows])
        own = self._own()
        return Encoded(
            joined_rows(block.ids, own["heavy-ids"], rows), joined_rows(block.floats, own["heavy-floats"], rows)
        )

    def allowed(
        self, *, servable: bool = True, with_bid: bool = False, excluded_advertisers: Sequence[str] = ()
    ) -> np.ndarray | None:
        """Which rows a search may find, bool [num_rows]; None where all may.

        Args:
            servable: Leave out what is not servable; what is taken down or without budget is left out anyway.
            with_bid: Leave out ads without a bid, where any ad has one.
            excluded_advertisers: Leave out their ads.
        """
        self.refresh()  # else ads that changed since the last look-up would be neither as they were nor as they are
        num_rows, masks = self.num_rows, []
        if servable:
            masks.append(self._servable[:num_rows])
        elif self._overlay is not None:
            masks.append(~self._overlay.withdrawn[:num_rows])
        if with_bid and (self._index_has_bids or (self._overlay is not None and self._overlay.has_bid.any())):
            masks.append(self._has_bid[:num_rows])
        codes, own_codes = self._advertiser_codes(excluded_advertisers)
        if len(codes) + len(own_codes):
            own = np.isin(self._known.advertisers[: num_rows - self._num_ads], own_codes)
            masks.append(~np.concatenate([np.isin(self.index.advertisers, codes), own]))
        return reduce(np.logical_and, masks) if masks else None

    def search(
        self, query_embedding: np.ndarray, head_weights: np.ndarray | None, k: int, allowed: np.ndarray | None
    ) -> np.ndarray:
        """As ``Index.search``, with every update in effect.

        Rows that the files of the search know as they were (superseded, or of another bid now) are left out there; they
        and the overlay's rows are scored one by one, and the best of both are returned.

        Args:
            allowed: Bool [num_rows], as :meth:`allowed` gives it.

        Returns:
            At most ``k`` distinct rows, int64, best first.
        """
        overlay = self._overlay
        if allowed is not None and is_few(allowed):
            rows = np.flatnonzero(allowed)
            few = rows if overlay is None else current_rows(overlay, rows, rows_here(overlay, len(allowed)))
            return self._best(few, query_embedding, head_weights, k)
        if overlay is None or not (overlay.num_rows or overlay.num_rebid):
            return self.index.search(query_embedding, head_weights, k, allowed)
        fresh = ~overlay.stale
        self.refresh()
        may = np.ones(self.num_rows, bool) if allowed is None else allowed
        here = rows_here(overlay, len(may))
        extra = extra_rows(overlay, fresh, may, here)
        if allowed is not None:
            fresh &= allowed[: self._num_ads]
        found = self.index.search(query_embedding, head_weights, k, fresh)
        found = found[is_current(overlay, found, here)]  # a newer row may have come since, and be among the extra ones
        return self._best(np.concatenate([found, extra]).astype(np.int64), query_embedding, head_weights, k)

    def _best(
        self, rows: np.ndarray, query_embedding: np.ndarray, head_weights: np.ndarray | None, k: int
    ) -> np.ndarray:
        heads = self._heads[self.objectives(rows)]
        scores = search_scores(self.pins(rows), self.bids(rows), heads, query_embedding, head_weights)
        return rows[best(scores, k)]

    def refresh(self) -> None:
        """Learn the ids of new rows now, so that the next look-up need not."""
        overlay = self._overlay
        if overlay is None or overlay.num_rows == len(self._known.ids):
            return
        with self._lock:
            known = len(self._known.ids)
            self._known.add(overlay.texts(known, overlay.num_rows))

    def _own(self) -> dict[str, np.ndarray]:
        return {} if self._overlay is None else self._overlay.rows

    def _any_own(self, rows: np.ndarray) -> bool:
        """Whether any row is of the overlay; its text is known then."""
        if self._overlay is None or self._overlay.num_rows == 0 or len(rows) == 0:
            return False
        largest = int(rows.max())
        if largest >= self.num_rows:
            self.refresh()
        return largest >= self._num_ads

    def _advertiser_codes(self, advertisers: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Codes of advertisers in the index, and in the overlay; those that have no ad are left out."""
        if not advertisers:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        codes = self.index.advertiser_ids.lookup(list(advertisers))
        return codes[codes >= 0], self._known.codes(advertisers)
