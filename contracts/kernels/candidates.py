"""Candidates of a request, column by column (``service.candidates``)."""

import numpy as np
from numba import types

from contracts.kernels.build import compiled, read, write

_SIFTED = (
    *(types.int64, read(types.int16), read(types.int32), write(types.int8), types.int8, types.int8),
    *(read(types.uint8), types.uint8, read(types.float32), write(types.float64)),
)


@compiled(types.boolean, *_SIFTED)
def sift(
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
    """Mark those of C candidates that an index has stopped, and give those without a bid the index's.

    Args:
        owner: Candidates of other owners are left as they are.
        owners, rows: [C]; a row below 0 is of no ad of the index.
        reasons: [C]; ``stopped`` is written where ``kept`` stood.
        states, stopped_state: Rows of this state are stopped; no states at all where none is.
        own_bids: Of the index's rows, NaN for none.
        bids: [C], NaN for none; written to.

    Returns:
        Whether a kept candidate's bid is negative or infinite.
    """
    invalid = False
    for place in range(len(rows)):
        row = rows[place]
        if owners[place] == owner and row >= 0:
            if len(states) and reasons[place] == kept and states[row] == stopped_state:
                reasons[place] = stopped
            if np.isnan(bids[place]):
                bids[place] = own_bids[row]
        if reasons[place] == kept and (bids[place] < 0 or np.isinf(bids[place])):
            invalid = True
    return invalid


_COLLECTED = (
    *(types.int64, read(types.int16), read(types.int8), types.int8, read(types.int32), read(types.float64)),
    *(read(types.int8), read(types.int64)),
    *(write(types.int64), write(types.int32), write(types.float64), write(types.int64)),
)


@compiled(types.int64, *_COLLECTED)
def collect(
    owner: int,
    owners: np.ndarray,
    reasons: np.ndarray,
    kept: int,
    rows: np.ndarray,
    bids: np.ndarray,
    own_codes: np.ndarray,
    codes: np.ndarray,
    kept_places: np.ndarray,
    kept_rows: np.ndarray,
    kept_bids: np.ndarray,
    kept_codes: np.ndarray,
) -> int:
    """Gather those of C candidates that an owner keeps; returns how many.

    Args:
        owner, owners, reasons, kept, rows, bids: As of :func:`sift`.
        own_codes: Objectives of the index's rows, -1 for none.
        codes: What each of them is called elsewhere; the last entry is for none.
        kept_places, kept_rows, kept_bids, kept_codes: Room for C of each.
    """
    count = 0
    for place in range(len(rows)):
        if owners[place] == owner and reasons[place] == kept:
            row = rows[place]
            own = own_codes[row] if row >= 0 else np.int8(-1)
            kept_places[count], kept_rows[count], kept_bids[count] = place, row, bids[place]
            kept_codes[count] = codes[own] if own >= 0 else codes[len(codes) - 1]
            count += 1
    return count


_SETTLED = (
    *(read(types.int32), read(types.int8), types.int8, types.int8, types.int8, read(types.uint8), types.uint8),
    *(read(types.float32), read(types.float64), read(types.int8), read(types.int64), write(types.int8)),
    *(write(types.int64), write(types.int32), write(types.float64), write(types.int64)),
)


@compiled(types.int64, *_SETTLED)
def settle(
    rows: np.ndarray,
    given: np.ndarray,
    kept: int,
    unknown: int,
    stopped: int,
    states: np.ndarray,
    stopped_state: int,
    own_bids: np.ndarray,
    bids: np.ndarray,
    own_codes: np.ndarray,
    codes: np.ndarray,
    reasons: np.ndarray,
    kept_places: np.ndarray,
    kept_rows: np.ndarray,
    kept_bids: np.ndarray,
    kept_codes: np.ndarray,
) -> int:
    """What :func:`sift` and :func:`collect` do for C candidates of one owner, in one pass, where nothing is special.

    Args:
        given: Reasons so far; none at all where all are kept.
        bids: None at all where the request has none.
        reasons: [C], written to.
        unknown: The reason of a candidate whose row is below 0; ``kept`` keeps it, and a number below 0 gives up there.

    Returns:
        How many are kept; -1 where somebody has to look: a kept one's bid is missing, negative or infinite.
    """
    count = 0
    for place in range(len(rows)):
        reasons[place] = given[place] if len(given) else kept
        if reasons[place] != kept:
            continue
        row, own = rows[place], np.int8(-1)
        bid = bids[place] if len(bids) else np.nan
        if row < 0:
            if unknown < 0:
                return -1
            reasons[place] = unknown
            if unknown != kept:
                continue
        elif len(states) and states[row] == stopped_state:
            reasons[place] = stopped
            continue
        else:
            own = own_codes[row]
            if np.isnan(bid):
                bid = np.float64(own_bids[row])
        if not 0 <= bid < np.inf:
            return -1
        kept_places[count], kept_rows[count], kept_bids[count] = place, row, bid
        kept_codes[count] = codes[own] if own >= 0 else codes[len(codes) - 1]
        count += 1
    return count


@compiled(types.int64, read(types.int8), write(types.int64), write(types.int64))
def by_reason(reasons: np.ndarray, places: np.ndarray, ends: np.ndarray) -> int:
    """Places of the candidates that have a reason, those of one reason together; returns how many.

    Args:
        reasons: [C], each in ``0..R-1``; 0 is none.
        places: Room for C places, which ascend within a reason.
        ends: Where those of each reason end [R], written to; they begin where the reason's before it end.
    """
    ends[:] = 0
    for reason in reasons:
        if reason:
            ends[reason] += 1
    total = 0
    for reason in range(len(ends)):  # first where each begins, which its places then move to its end
        count, ends[reason] = ends[reason], total
        total += count
    for place in range(len(reasons)):
        if reasons[place]:
            places[ends[reasons[place]]] = place
            ends[reasons[place]] += 1
    return total
