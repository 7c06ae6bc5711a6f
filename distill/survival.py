"""What of one pool's best survives a cut to each of several numbers of ads.

Shapes: C ads of the pool, M numbers of survivors.
"""

from functools import lru_cache

import numpy as np

from contracts.metrics import chance_chosen, recall_at

NUM_FIGURES = 3


def survival(
    heavy: np.ndarray, light: np.ndarray, truth: np.ndarray | None, top_k: int, survivors: tuple[int, ...]
) -> np.ndarray:
    """Recall, utility lost and regret at each number of survivors, float64 [3, M].

    With ``S`` the light top m and ``T`` the heavy top k of S:

        recall        share of the heavy top k of all ads that is in S
        utility lost  1 - sum of heavy utility over T / its sum over the heavy top k of all ads
        regret        1 - sum of true utility over T / its sum over the k best ads by true utility

    The same as :func:`contracts.metrics.recall_at` and :func:`contracts.metrics.utility_regret`; where the light order
    has no tie at a cut, all cuts are made at once.

    Args:
        heavy, light: Utilities [C] by the heavy and by the light ranker.
        truth: True utilities [C]; None gives NaN, and so does a pool in which one is not known.
        top_k, survivors: Each counts as C where it is larger.
    """
    if np.isnan(heavy).any() or np.isnan(light).any():
        return np.full((NUM_FIGURES, len(survivors)), np.nan)
    k, cuts = min(top_k, len(heavy)), np.minimum(survivors, len(heavy))
    order = np.argsort(-heavy, kind="stable")
    heavy, light = heavy[order], light[order]
    chosen, recall = _clear_cuts(heavy, light, k, cuts)
    for place in np.flatnonzero(_tied_at(light, cuts)).tolist():
        cut = int(cuts[place])
        chosen[place] = _chosen(heavy, light, k, cut)
        recall[place] = cut / len(heavy) if _constant(light) else recall_at(heavy, light, k, cut)
    lost = _lost(chosen @ heavy, heavy, k)
    regret = np.full(len(cuts), np.nan) if truth is None else _lost(chosen @ truth[order], truth, k)
    return np.stack([recall, lost, regret])


def _clear_cuts(heavy: np.ndarray, light: np.ndarray, k: int, cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who is chosen [M, C] and the recall [M], for cuts that divide no tie; ads come in heavy order."""
    place = np.empty(len(light), np.int64)
    place[np.argsort(-light, kind="stable")] = np.arange(len(light))
    survives = place < cuts[:, None]
    chosen = survives & (np.cumsum(survives, axis=1) <= k)
    tied_top = heavy == heavy[k - 1]
    share = np.where(tied_top, (k - (heavy > heavy[k - 1]).sum()) / tied_top.sum(), heavy > heavy[k - 1])
    return chosen.astype(np.float64), survives @ share / k


def _tied_at(light: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """bool [M], whether ads of equal light utility lie on both sides of a cut."""
    falling = -np.sort(-light)
    inside = cuts < len(light)
    return inside & (falling[cuts - 1] == falling[np.where(inside, cuts, 0)])


def _chosen(heavy: np.ndarray, light: np.ndarray, k: int, cut: int) -> np.ndarray:
    return _chosen_at_random(len(heavy), k, cut) if _constant(light) else chance_chosen(heavy, light, k, cut)


@lru_cache(maxsize=256)
def _chosen_at_random(num_ads: int, k: int, cut: int) -> np.ndarray:
    """The chance [C] of each ad, in heavy order, when survivors are drawn at random: the same for every pool."""
    return chance_chosen(-np.arange(num_ads, dtype=np.float64), np.zeros(num_ads), k, cut)


def _constant(light: np.ndarray) -> bool:
    return bool((light == light[0]).all())


def _lost(kept: np.ndarray, utility: np.ndarray, k: int) -> np.ndarray:
    """Share [M] of the best k's utility that is not kept; NaN where the best have none."""
    best = np.sort(utility)[-k:].sum()
    return 1.0 - kept / best if best > 0 else np.full(len(kept), np.nan)
