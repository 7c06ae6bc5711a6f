"""Which of the scored ads survive: the best by utility, with quotas by scenario and a drawn share where configured.

Shapes: P ads of one pool, K survivors.
"""

from collections.abc import Mapping, Sequence
from math import floor

import msgspec
import numpy as np
import xxhash

from contracts.utility import top_positions
from service.light import Ranking, Scored

_SEED = 0xE0
"""Of the hash that draws: not that of any other split of requests."""


def choose_survivors(
    scored: Sequence[Scored], k: int, *, quotas: Mapping[str, float], explore_share: float, request_id: str
) -> Ranking:
    """``k`` ads over all pools, best first; equal ones in the order of the request.

    With quotas, each scenario first gets its share of ``k``, rounded down, from its own best; what is left over goes to
    the best of the rest. With exploration, the last n places go to ads drawn at random from all that did not survive,
    each as likely as the other, so that the heavy ranker also sees what the light one rejects. They follow the others
    here; both n and the draw depend on the request's id alone.

    n is k * explore_share on average: rounded up with the probability of its fractional part, else rounded down, so
    that short lists explore too. The propensity of an ad that was drawn is its probability over both: the mean over n
    of [the ad is none of the best k - n] * n / (P - k + n), with P all ads.

    Args:
        scored: Pools, of which P may be 0.
        k: At least 1.
        quotas: Shares by scenario, in sum at most 1; scenarios without one share what is left.
        explore_share: Of the survivors, below 1. Where all ads survive, none is drawn.
        request_id: Seeds the draw.
    """
    found = scored[0].best(k) if len(scored) == 1 and explore_share == 0 else None
    if found is not None:
        return Ranking(owners=np.zeros(len(found[0]), np.int64), places=found[0], utilities=found[1])
    everything = _all_in_request_order(scored)
    if explore_share == 0 or len(everything) <= k:
        return everything.take(_best(everything, scored, k, quotas))
    generator = np.random.default_rng(xxhash.xxh64_intdigest(request_id.encode(), _SEED))
    numbers = _numbers_drawn(k, explore_share)
    num_drawn = max(numbers) if generator.random() < numbers[max(numbers)] else min(numbers)
    best = _best(everything, scored, k - num_drawn, quotas)
    if num_drawn == 0:
        return everything.take(best)
    rest = np.setdiff1d(np.arange(len(everything)), best, assume_unique=True)
    drawn = np.sort(generator.choice(rest, num_drawn, replace=False))
    drawn = drawn[np.argsort(-everything.utilities[drawn], kind="stable")]
    propensities = np.zeros(num_drawn)
    for number, probability in numbers.items():
        if number:
            kept = best if number == num_drawn else _best(everything, scored, k - number, quotas)
            is_out = ~np.isin(drawn, kept)
            propensities += probability * is_out * number / (len(everything) - len(kept))
    propensities = np.r_[np.full(len(best), np.nan), propensities]
    return msgspec.structs.replace(everything.take(np.r_[best, drawn]), propensities=propensities)


def _numbers_drawn(k: int, explore_share: float) -> dict[int, float]:
    """How many ads are drawn, with the probability of each number.

    Example:
        >>> _numbers_drawn(20, 0.125)
        {2: 0.5, 3: 0.5}
        >>> _numbers_drawn(20, 0.25)
        {5: 1.0}
    """
    mean = round(k * explore_share, 9)
    fraction = mean - floor(mean)
    return {floor(mean): 1 - fraction} | ({floor(mean) + 1: fraction} if fraction else {})


def _all_in_request_order(scored: Sequence[Scored]) -> Ranking:
    owners = np.concatenate([np.full(len(part.pool.rows), owner) for owner, part in enumerate(scored)])
    places = np.concatenate([np.arange(len(part.pool.rows)) for part in scored])
    utilities = np.concatenate([part.utilities for part in scored])
    everything = Ranking(owners=owners, places=places, utilities=utilities)
    if len(scored) > 1:
        everything = everything.take(np.argsort(np.concatenate([part.pool.positions for part in scored])))
    return everything


def _best(everything: Ranking, scored: Sequence[Scored], k: int, quotas: Mapping[str, float]) -> np.ndarray:
    """Places of the ``k`` best, best first."""
    reserved = {
        owner: int(quotas[part.release.scenario] * k + 1e-9)
        for owner, part in enumerate(scored)
        if part.release.scenario in quotas
    }
    if len(scored) == 1 or not any(reserved.values()):
        return top_positions(everything.utilities, k)
    taken = []
    for owner, count in reserved.items():
        mine = np.flatnonzero(everything.owners == owner)
        taken.append(mine[top_positions(everything.utilities[mine], count)])
    kept = np.concatenate(taken)
    rest = np.setdiff1d(np.arange(len(everything)), kept, assume_unique=True)
    kept = np.sort(np.r_[kept, rest[top_positions(everything.utilities[rest], k - len(kept))]])
    return kept[np.argsort(-everything.utilities[kept], kind="stable")]
