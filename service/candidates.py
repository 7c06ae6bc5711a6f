"""Which candidates are ranked, with which bid and objective, and why the others are not.

Everything is a column over the candidates of the request. Each dropped candidate has one reason, the first that applies
of: duplicate, unknown or of another scenario, inactive, filtered, bid. Shapes: C candidates, P those of one pool, A ads
of an index, H heads, D width of a head's vector.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from contracts.errors import RequestError
from service.api import Dropped
from service.releases import LoadedRelease
from service.settings import Settings
from service.wire import CandidateColumns


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


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The ads that one release ranks.

    ``positions`` [P] are ascending places in the request, or in what was retrieved; ``rows`` [P] rows of the index, -1
    for an unknown ad that is scored; ``bids`` float64 [P]; ``objectives`` [P] codes of the release.
    """

    positions: np.ndarray
    rows: np.ndarray
    bids: np.ndarray
    objectives: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """One pool for each release, and the reason of every candidate [C]; empty for retrieved ads."""

    pools: list[Pool]
    reasons: np.ndarray

    def dropped(self, ids: Sequence[str]) -> Dropped:
        """The ids of what is not ranked, by reason."""
        if not self.reasons.any():
            return Dropped()
        lists: dict[str, list[str]] = {}
        for place in np.flatnonzero(self.reasons).tolist():
            lists.setdefault(_NAMES[self.reasons[place]], []).append(ids[place])
        return Dropped(**lists)


def resolve(
    columns: CandidateColumns,
    releases: Sequence[LoadedRelease],
    others: Sequence[LoadedRelease],
    excluded_advertisers: Sequence[str],
    settings: Settings,
) -> Resolved:
    """Sort the candidates of a request into the pools of ``releases``.

    A candidate goes to the first release whose index holds it.

    Args:
        columns: Checked candidate columns.
        releases: What the request may be ranked by.
        others: Releases of other scenarios: an ad that only they hold is dropped as of another scenario.

    Raises:
        RequestError: An objective that the release does not know; or a policy refuses a duplicate or a bid.
    """
    reasons = np.zeros(len(columns.ids), np.int8)
    owners, rows = _find(columns.ids, releases)
    if not _are_distinct(columns.ids, owners, rows):
        _mark_duplicates(columns.ids, reasons, settings)
    _mark_unknown(columns.ids, owners, reasons, releases, others, settings)
    for owner, loaded in enumerate(releases):
        _mark_unservable(reasons, owners == owner, rows, loaded, excluded_advertisers, settings)
    bids = _bids(columns, owners, rows, releases)
    _mark_invalid_bids(bids, reasons, settings)
    pools = [
        _pool(columns, loaded, np.flatnonzero((owners == owner) & (reasons == Reason.KEPT)), rows, bids)
        for owner, loaded in enumerate(releases)
    ]
    return Resolved(pools=_fill_bids(pools, reasons, settings), reasons=reasons)


def retrieve(
    releases: Sequence[LoadedRelease],
    embeddings: Sequence[np.ndarray],
    num_wanted: int,
    excluded_advertisers: Sequence[str],
    settings: Settings,
) -> Resolved:
    """Pools of what each index finds for its query embedding [H, D+2], several times what is wanted.

    An ad without a usable bid is left out as a candidate would be.
    """
    pools, start = [], 0
    num_fetched = math.ceil(num_wanted * settings.retrieval_overfetch)
    for loaded, embedding in zip(releases, embeddings, strict=True):
        allowed = loaded.live.allowed(
            servable=settings.inactive_ads == "drop",
            with_bid=settings.missing_bids == "drop",
            excluded_advertisers=excluded_advertisers,
        )
        rows = loaded.retriever.rows(embedding, num_wanted, num_fetched, allowed)
        bids = loaded.live.bids(rows).astype(np.float64)
        usable = ~(bids < 0) & ~np.isinf(bids)
        rows, bids = rows[usable], bids[usable]
        objectives = loaded.index_objectives[loaded.live.objectives(rows)]
        positions = np.arange(start, start + len(rows))
        start += len(rows)
        pools.append(Pool(positions=positions, rows=rows, bids=bids, objectives=objectives))
    return Resolved(pools=_fill_bids(pools, np.zeros(start, np.int8), settings), reasons=np.zeros(0, np.int8))


def _are_distinct(ids: list[str], owners: np.ndarray, rows: np.ndarray) -> bool:
    """Whether no id stands twice: a known one has a row of its own, which is quicker to compare."""
    unknown = np.flatnonzero(owners < 0).tolist()
    if len({ids[place] for place in unknown}) < len(unknown):
        return False
    places = (owners.astype(np.int64) << 32) | rows
    places.sort()
    known = places[len(unknown) :]  # the unknown ones are negative
    return not (known[1:] == known[:-1]).any()


def _mark_duplicates(ids: list[str], reasons: np.ndarray, settings: Settings) -> None:
    seen: set[str] = set()
    for position, ad_id in enumerate(ids):
        if ad_id in seen:
            if settings.duplicate_ads == "refuse":
                raise RequestError(f"{ad_id!r} is listed twice", field=f"candidates[{position}]")
            reasons[position] = Reason.DUPLICATE
        seen.add(ad_id)


def _find(ids: list[str], releases: Sequence[LoadedRelease]) -> tuple[np.ndarray, np.ndarray]:
    """The release that holds each id, -1 for none, and its row there."""
    owners, rows = np.full(len(ids), -1, np.int16), np.full(len(ids), -1, np.int32)
    for owner, loaded in enumerate(releases):
        open_places = np.flatnonzero(owners < 0)
        found = _lookup(ids, open_places, loaded)
        places = open_places[found >= 0]
        owners[places], rows[places] = owner, found[found >= 0]
    return owners, rows


def _lookup(ids: list[str], places: np.ndarray, loaded: LoadedRelease) -> np.ndarray:
    if len(places) == 0:
        return np.zeros(0, np.int32)
    wanted = ids if len(places) == len(ids) else [ids[place] for place in places]
    return loaded.live.lookup(wanted)


def _mark_unknown(
    ids: list[str],
    owners: np.ndarray,
    reasons: np.ndarray,
    releases: Sequence[LoadedRelease],
    others: Sequence[LoadedRelease],
    settings: Settings,
) -> None:
    """Mark ids that no release of the request holds; where a policy scores them they join its only pool."""
    unknown = np.flatnonzero((owners < 0) & (reasons == Reason.KEPT))
    for loaded in others:
        elsewhere = _lookup(ids, unknown, loaded) >= 0
        reasons[unknown[elsewhere]] = Reason.SCENARIO
        unknown = unknown[~elsewhere]
    if settings.unknown_ads == "score" and len(releases) == 1:
        owners[unknown] = 0
    else:
        reasons[unknown] = Reason.UNKNOWN


def _mark_unservable(
    reasons: np.ndarray,
    mine: np.ndarray,
    rows: np.ndarray,
    loaded: LoadedRelease,
    excluded_advertisers: Sequence[str],
    settings: Settings,
) -> None:
    """Mark ads that must not be served now, and those of excluded advertisers."""
    places = np.flatnonzero(mine & (rows >= 0) & (reasons == Reason.KEPT))
    withdrawn = loaded.live.withdrawn(rows[places])
    if settings.inactive_ads == "drop":
        withdrawn = ~loaded.live.servable(rows[places])
    if withdrawn is not None:
        reasons[places[withdrawn]] = Reason.INACTIVE
        places = places[~withdrawn]
    excluded = loaded.live.excluded(excluded_advertisers, rows[places])
    if excluded is not None:
        reasons[places[excluded]] = Reason.FILTERED


def _bids(
    columns: CandidateColumns, owners: np.ndarray, rows: np.ndarray, releases: Sequence[LoadedRelease]
) -> np.ndarray:
    """Bids from the request, else from the index, else NaN. Float64 [C]."""
    bids = np.full(len(columns.ids), np.nan) if columns.bids is None else columns.bids.copy()
    for owner, loaded in enumerate(releases):
        places = np.flatnonzero((owners == owner) & (rows >= 0) & np.isnan(bids))
        bids[places] = loaded.live.bids(rows[places])
    return bids


def _mark_invalid_bids(bids: np.ndarray, reasons: np.ndarray, settings: Settings) -> None:
    invalid = np.flatnonzero(((bids < 0) | np.isinf(bids)) & (reasons == Reason.KEPT))
    if len(invalid) and settings.invalid_bids == "refuse":
        raise RequestError("expected a finite bid of at least 0", field=f"candidates.bids[{invalid[0]}]")
    reasons[invalid] = Reason.BID


def _pool(
    columns: CandidateColumns, loaded: LoadedRelease, places: np.ndarray, rows: np.ndarray, bids: np.ndarray
) -> Pool:
    return Pool(
        positions=places,
        rows=rows[places],
        bids=bids[places],
        objectives=_objectives(columns.objectives, loaded, places, rows[places]),
    )


def _objectives(
    names: list[str | None] | None, loaded: LoadedRelease, places: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Codes from the request, else from the index, else the default. [P]"""
    stored = np.where(rows >= 0, loaded.live.objectives(rows), -1)
    codes = loaded.index_objectives[stored]
    if names is None:
        return codes
    wanted = [names[place] for place in places]
    for name in set(wanted) - {None}:
        if name not in loaded.objectives.codes:
            position = places[wanted.index(name)]
            raise RequestError(
                f"unknown objective {name!r} in scenario {loaded.scenario!r}, "
                f"expected null or one of {', '.join(loaded.objectives.names)}",
                field=f"candidates.objectives[{position}]",
            )
    given = np.array([-1 if name is None else loaded.objectives.codes[name] for name in wanted], np.intp)
    return np.where(given >= 0, given, codes)


def _fill_bids(pools: list[Pool], reasons: np.ndarray, settings: Settings) -> list[Pool]:
    """Settle what an ad without any bid counts as; all pools together, as they compete."""
    bids = np.concatenate([pool.bids for pool in pools]) if pools else np.zeros(0)
    present = bids[~np.isnan(bids)]
    if len(present) == len(bids):
        return pools
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
