"""Which candidates are ranked, with which bid and objective, and why the others are not.

Everything is a column over the candidates of the request. Each dropped candidate has one reason, the first that applies
of: duplicate, unknown or of another scenario, inactive, filtered, bid. Shapes: C candidates, P those of one pool, A ads
of an index, H heads, D width of a head's vector.
"""

import math
from collections.abc import Sequence

import numpy as np

from contracts import compiled
from contracts.errors import RequestError
from indexing.id_keys import may_repeat
from indexing.id_texts import texts_at
from service.pools import Pool, Reason, Resolved, fill_bids
from service.releases import LoadedRelease
from service.settings import Settings
from service.wire import CandidateColumns

_KEPT, _UNKNOWN, _INACTIVE = (
    int(Reason.KEPT),
    int(Reason.UNKNOWN),
    int(Reason.INACTIVE),
)  # NumPy takes long over a member of an enumeration
_NONE, _NO_BIDS = np.zeros(0, np.int8), np.zeros(0)


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
    rows = releases[0].live.lookup(columns.ids, columns.keys)
    repeated = _NONE
    if may_repeat(columns.keys):
        repeated = _duplicates(columns.ids, settings)
    if len(releases) == 1 and not excluded_advertisers:
        settled = _settle(columns, rows, repeated, releases[0], bool(others), settings)
        if settled is not None:
            return settled
    reasons = repeated.copy() if len(repeated) else np.zeros(len(columns.ids), np.int8)
    owners = _owners(columns, releases, rows)
    _mark_unknown(columns, owners, reasons, releases, others, settings)
    bids = np.full(len(columns.ids), np.nan) if columns.bids is None else columns.bids.copy()
    invalid = [
        _mark_unservable(owner, owners, rows, reasons, bids, loaded, excluded_advertisers, settings)
        for owner, loaded in enumerate(releases)
    ]
    if any(invalid):
        _mark_invalid_bids(bids, reasons, settings)
    pools = [_pool(columns, loaded, owner, owners, reasons, rows, bids) for owner, loaded in enumerate(releases)]
    return Resolved(pools=fill_bids(pools, reasons, settings), reasons=reasons)


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
    return Resolved(pools=fill_bids(pools, np.zeros(start, np.int8), settings), reasons=np.zeros(0, np.int8))


def _duplicates(ids: Sequence[str], settings: Settings) -> np.ndarray:
    """The reasons of all candidates, of which only the repeated ones have one [C]."""
    reasons, seen = np.zeros(len(ids), np.int8), set[str]()
    for position, ad_id in enumerate(ids):
        if ad_id in seen:
            if settings.duplicate_ads == "refuse":
                raise RequestError(f"{ad_id!r} is listed twice", field=f"candidates[{position}]")
            reasons[position] = Reason.DUPLICATE
        seen.add(ad_id)
    return reasons


def _settle(
    columns: CandidateColumns,
    rows: np.ndarray,
    repeated: np.ndarray,
    loaded: LoadedRelease,
    has_others: bool,
    settings: Settings,
) -> Resolved | None:
    """The only pool, in one pass; None where some candidate has to be looked at: as the functions below do it.

    ``repeated`` are reasons [C], none at all where no candidate has one yet.
    """
    kernels, count, live = compiled.kernels(), len(rows), loaded.live
    if kernels is None:
        return None
    unknown = -1 if has_others else _KEPT if settings.unknown_ads == "score" else _UNKNOWN
    states, stopped = live.states(servable=settings.inactive_ads == "drop")
    bids = _NO_BIDS if columns.bids is None else columns.bids
    reasons = np.empty(count, np.int8)
    room = np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count), np.empty(count, np.int64)
    given = rows, repeated, _KEPT, unknown, _INACTIVE, states, stopped, live.all_bids, bids
    found = kernels.settle(*given, live.all_objectives, loaded.index_objectives, reasons, *room)
    if found < 0:
        return None
    return Resolved(pools=[_pool_of(columns, loaded, found, *room)], reasons=reasons)


def _owners(columns: CandidateColumns, releases: Sequence[LoadedRelease], rows: np.ndarray) -> np.ndarray:
    """The release that holds each id, int16 [C], -1 for none; ``rows`` of the first one become those of the owner."""
    owners = (rows >> 31).astype(np.int16)  # the sign: 0, or -1 where it is unknown
    for owner, loaded in enumerate(releases[1:], 1):
        open_places = np.flatnonzero(owners < 0)
        found = _lookup(columns, open_places, loaded)
        places = open_places[found >= 0]
        owners[places], rows[places] = owner, found[found >= 0]
    return owners


def _lookup(columns: CandidateColumns, places: np.ndarray, loaded: LoadedRelease) -> np.ndarray:
    if len(places) == 0:
        return np.zeros(0, np.int32)
    return loaded.live.lookup(texts_at(columns.ids, places), columns.keys.take(places))


def _mark_unknown(
    columns: CandidateColumns,
    owners: np.ndarray,
    reasons: np.ndarray,
    releases: Sequence[LoadedRelease],
    others: Sequence[LoadedRelease],
    settings: Settings,
) -> None:
    """Mark ids that no release of the request holds; where a policy scores them they join its only pool."""
    unknown = np.flatnonzero(owners < 0)
    unknown = unknown[reasons[unknown] == _KEPT]
    for loaded in others:
        elsewhere = _lookup(columns, unknown, loaded) >= 0
        reasons[unknown[elsewhere]] = Reason.SCENARIO
        unknown = unknown[~elsewhere]
    if settings.unknown_ads == "score" and len(releases) == 1:
        owners[unknown] = 0
    else:
        reasons[unknown] = Reason.UNKNOWN


def _mark_unservable(
    owner: int,
    owners: np.ndarray,
    rows: np.ndarray,
    reasons: np.ndarray,
    bids: np.ndarray,
    loaded: LoadedRelease,
    excluded_advertisers: Sequence[str],
    settings: Settings,
) -> bool:
    """Mark ads that must not be served now, and those of excluded advertisers; give ads without a bid the index's.

    Returns:
        Whether some bid that may still count is negative or infinite.
    """
    states, stopped = loaded.live.states(servable=settings.inactive_ads == "drop")
    kernels = compiled.kernels()
    sift = sifted if kernels is None else kernels.sift
    kept, inactive = _KEPT, _INACTIVE
    invalid = sift(owner, owners, rows, reasons, kept, inactive, states, stopped, loaded.live.all_bids, bids)
    if excluded_advertisers:
        places = np.flatnonzero((owners == owner) & (rows >= 0) & (reasons == _KEPT))
        excluded = loaded.live.excluded(excluded_advertisers, rows[places])
        if excluded is not None:
            reasons[places[excluded]] = Reason.FILTERED
    return bool(invalid)


def sifted(
    owner: int,
    owners: np.ndarray,
    rows: np.ndarray,
    reasons: np.ndarray,
    kept: int,
    stopped: int,
    states: np.ndarray,
    stopped_state: int,
    own_bids: np.ndarray,
    bids: np.ndarray,
) -> bool:
    """As ``contracts.kernels.sift``, in NumPy."""
    mine = np.flatnonzero((owners == owner) & (rows >= 0))
    if len(states):
        reasons[mine[(reasons[mine] == kept) & (states[rows[mine]] == stopped_state)]] = stopped
    without = mine[np.isnan(bids[mine])]
    bids[without] = own_bids[rows[without]]
    return bool(((reasons == kept) & ((bids < 0) | np.isinf(bids))).any())


def _mark_invalid_bids(bids: np.ndarray, reasons: np.ndarray, settings: Settings) -> None:
    invalid = np.flatnonzero(((bids < 0) | np.isinf(bids)) & (reasons == _KEPT))
    if len(invalid) and settings.invalid_bids == "refuse":
        raise RequestError("expected a finite bid of at least 0", field=f"candidates.bids[{invalid[0]}]")
    reasons[invalid] = Reason.BID


def _pool(
    columns: CandidateColumns,
    loaded: LoadedRelease,
    owner: int,
    owners: np.ndarray,
    reasons: np.ndarray,
    rows: np.ndarray,
    bids: np.ndarray,
) -> Pool:
    count, kernels = len(rows), compiled.kernels()
    room = np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count), np.empty(count, np.int64)
    collect = collected if kernels is None else kernels.collect
    given = owner, owners, reasons, _KEPT, rows, bids
    count = collect(*given, loaded.live.all_objectives, loaded.index_objectives, *room)
    return _pool_of(columns, loaded, count, *room)


def _pool_of(
    columns: CandidateColumns,
    loaded: LoadedRelease,
    count: int,
    places: np.ndarray,
    rows: np.ndarray,
    bids: np.ndarray,
    codes: np.ndarray,
) -> Pool:
    """The pool that the first ``count`` of these columns make."""
    places, codes = places[:count], codes[:count]
    objectives = codes if columns.objectives is None else _objectives(columns.objectives, loaded, places, codes)
    return Pool(positions=places, rows=rows[:count], bids=bids[:count], objectives=objectives)


def collected(
    owner: int,
    owners: np.ndarray,
    reasons: np.ndarray,
    kept: int,
    rows: np.ndarray,
    bids: np.ndarray,
    own_codes: np.ndarray,
    codes: np.ndarray,
    *room: np.ndarray,
) -> int:
    """As ``contracts.kernels.collect``, in NumPy."""
    places = np.flatnonzero((owners == owner) & (reasons == kept))
    own = np.where(rows[places] >= 0, own_codes[rows[places]], -1)
    for column, values in zip(room, (places, rows[places], bids[places], codes[own]), strict=True):
        column[: len(places)] = values
    return len(places)


def _objectives(names: list[str | None], loaded: LoadedRelease, places: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Codes from the request, else those of the index or the default. [P]"""
    wanted = [names[place] for place in places.tolist()]
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
