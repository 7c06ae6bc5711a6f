"""From logits to the ads of an answer: what is paid for, utilities, the best of them."""

import numpy as np
from numba import njit, types

from contracts.kernels.build import U64, compiled, read, write

_ROUNDS, _RUN = 100, 8
_FACTOR = U64(6364136223846793005)  # of MMIX by Knuth
_LARGEST = float(np.log(np.finfo(np.float64).max))
"""Of a larger number the exponential overflows: it is taken as infinity, which warns of nothing."""


@njit(inline="always")
def _exponent(logit: np.float32) -> float:
    """The x of ``1 / (1 + exp(x))``."""
    negative = -np.float64(logit)
    return np.inf if negative > _LARGEST else negative


@compiled(types.void, read(types.float32, 2), read(types.int64), read(types.int64), write(types.float64))
def paid_exponents(logits: np.ndarray, heads: np.ndarray, codes: np.ndarray, exponents: np.ndarray) -> None:
    """The x of ``1 / (1 + exp(x))``, the probability of what each ad's objective pays for.

    The exponential itself is NumPy's, whose last bit differs from that of other libraries.

    Args:
        logits: [P, H].
        heads: Of each code of an objective; H for the impression, which is certain.
        codes: Of the ads [P].
        exponents: [P], written to.
    """
    num_heads = logits.shape[1]
    for place in range(len(codes)):
        head = heads[codes[place]]
        exponents[place] = _exponent(logits[place, head]) if head < num_heads else -np.inf


@compiled(types.boolean, read(types.float32, 2), read(types.int64), write(types.float64, 2))
def exponents_at(logits: np.ndarray, places: np.ndarray, exponents: np.ndarray) -> bool:
    """The x of ``1 / (1 + exp(x))`` of some ads.

    Args:
        logits: [P, H].
        places: [K].
        exponents: [H, K], written to.

    Returns:
        Whether none is NaN.
    """
    is_whole = True
    for at in range(len(places)):
        for head in range(logits.shape[1]):
            exponents[head, at] = _exponent(logits[places[at], head])
            is_whole &= not np.isnan(exponents[head, at])
    return is_whole


@compiled(types.void, write(types.float64), read(types.float64))
def weigh(odds: np.ndarray, bids: np.ndarray) -> None:
    """Utilities ``bid * (1 / (1 + odds))`` of P ads, in the place of the odds [P] against what is paid for."""
    for place in range(len(odds)):
        odds[place] = bids[place] * (1.0 / (1.0 + odds[place]))


@njit
def _threshold(values, k):  # type: ignore[no-untyped-def]
    """The ``k``-th largest of values, which are put in another order; NaN where it is not found soon."""
    low, high, drawn = 0, len(values), U64(k)
    for _ in range(_ROUNDS):
        drawn = drawn * _FACTOR + U64(1)  # places that no order of the values can foresee
        size, far = high - low, np.intp(drawn >> U64(20))
        one, other, third = values[low + far % size], values[low + (far >> 12) % size], values[low + (far >> 24) % size]
        pivot = max(min(one, other), min(max(one, other), third))
        above = low
        for at in range(low, high):  # without a branch, as none could be foreseen
            value = values[at]
            values[at], values[above] = values[above], value
            above += value > pivot
        if k <= above - low:
            high = above
            continue
        k -= above - low
        low = above
        for at in range(above, high):
            value = values[at]
            values[at], values[low] = values[low], value
            low += value == pivot
        if k <= low - above:
            return pivot
        k -= low - above
    return np.nan


@njit
def _merge(values, places, into, into_places, low, middle, high):  # type: ignore[no-untyped-def]
    one, other = low, middle
    for at in range(low, high):
        first = other >= high or (one < middle and values[one] >= values[other])
        source = one if first else other
        into[at], into_places[at] = values[source], places[source]
        one += first
        other += not first


@njit
def _sort(values, places):  # type: ignore[no-untyped-def]
    """The largest first, equal ones as they stand: short runs by insertion, then merged."""
    count = len(values)
    for start in range(0, count, _RUN):
        for at in range(start + 1, min(start + _RUN, count)):
            value, place, to = values[at], places[at], at
            while to > start and values[to - 1] < value:
                values[to], places[to] = values[to - 1], places[to - 1]
                to -= 1
            values[to], places[to] = value, place
    from_values, from_places, to_values, to_places = values, places, np.empty_like(values), np.empty_like(places)
    width, turns = _RUN, 0
    while width < count:
        for low in range(0, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            _merge(from_values, from_places, to_values, to_places, low, middle, high)
        from_values, from_places, to_values, to_places = to_values, to_places, from_values, from_places
        width, turns = 2 * width, turns + 1
    if turns % 2:
        values[:], places[:] = from_values, from_places


@compiled(types.boolean, read(types.float64), write(types.int64), write(types.float64))
def best_of(utilities: np.ndarray, places: np.ndarray, values: np.ndarray) -> bool:
    """The K largest of P utilities, best first, equal ones in the order in which they stand.

    Args:
        utilities: [P].
        places: Where they stand [K], of which 1 to P; written to.
        values: Themselves [K], written to.

    Returns:
        False where one is NaN, or it takes too long; what was written is then of no use.
    """
    wanted, is_whole = len(places), True
    for utility in utilities:
        is_whole &= not np.isnan(utility)
    if not is_whole:
        return False
    threshold = _threshold(utilities.copy(), wanted) if wanted < len(utilities) else -np.inf
    if np.isnan(threshold):
        return False
    above = 0
    for utility in utilities:
        above += utility > threshold
    equal, count, place = wanted - above, 0, 0
    while count < wanted:
        utility = utilities[place]
        is_kept = utility > threshold
        if utility == threshold and equal:
            is_kept, equal = True, equal - 1
        places[count], values[count] = place, utility
        count += is_kept
        place += 1
    _sort(values, places)
    return True
