"""The logged policy: a noisy light ranker, a better downstream one, a few slots at random, and what of it is logged.

Shape letters: R requests, P ads in a pool.
"""

from dataclasses import dataclass

import numpy as np

from adlogs.truth import Truth

ELIGIBLE, CANDIDATE, WINNER = 0, 1, 2
# How the logged rankers see log utility: what they catch of the probability, and the standard deviation of their error.
# Both are far from the truth, as a first system is; a better one would log little that a model could still learn from.
_LIGHT_SHARE, _LIGHT_NOISE = 0.3, 0.6
_HEAVY_SHARE, _HEAVY_NOISE = 0.6, 0.4


@dataclass(frozen=True)
class Funnel:
    """Sizes of the policy for one group of requests.

    `logged_candidates` and `logged_eligible` say how many dropped ads of each stage are logged; None logs all.
    """

    num_candidates: int
    num_winners: int
    explore_rate: float
    logged_candidates: int | None = None
    logged_eligible: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What the policy did with each ad of each pool, all [R, P]."""

    stage: np.ndarray  # int8: the furthest stage
    position: np.ndarray  # int8: 1 is the first slot, 0 not shown
    propensity: np.ndarray  # float32: of a randomly shown ad, NaN elsewhere
    logged: np.ndarray  # bool
    weight: np.ndarray  # float32: how many dropped ads a logged one stands for


def true_utility(truth: Truth, bid: np.ndarray, objective: np.ndarray) -> np.ndarray:
    """Bid times the probability of what the objective pays for (0 impression, 1 click, 2 conversion), [R, P]."""
    return bid * np.select([objective == 1, objective == 2], [truth.click, truth.conversion], 1.0)


def run_policy(expected: np.ndarray, utility: np.ndarray, funnel: Funnel, rng: np.random.Generator) -> Outcome:
    """Send each pool through the funnel.

    Args:
        expected: Bid times how often the objective is met on average, [R, P]: all that is known of an ad beforehand.
        utility: The true one, [R, P], of which the policy sees a part.
    """
    known = np.log(expected)
    surprise = np.log(utility) - known
    light = known + _LIGHT_SHARE * surprise + _LIGHT_NOISE * rng.standard_normal(utility.shape)
    heavy = known + _HEAVY_SHARE * surprise + _HEAVY_NOISE * rng.standard_normal(utility.shape)
    stage = np.zeros(utility.shape, dtype=np.int8)
    np.put_along_axis(stage, _top(light, funnel.num_candidates), np.int8(CANDIDATE), axis=1)
    slots = _top(np.where(stage == CANDIDATE, heavy, -np.inf), funnel.num_winners)
    np.put_along_axis(stage, slots, np.int8(WINNER), axis=1)
    propensity = np.full(utility.shape, np.nan, dtype=np.float32)
    _explore(stage, slots, propensity, funnel, rng)
    position = np.zeros(utility.shape, dtype=np.int8)
    np.put_along_axis(position, slots, np.arange(1, funnel.num_winners + 1, dtype=np.int8)[None], axis=1)
    logged, weight = _choose_logged(stage, funnel, rng)
    return Outcome(stage=stage, position=position, propensity=propensity, logged=logged, weight=weight)


def _top(score: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` highest scores of each row, best first, int [R, count]."""
    top = np.argpartition(-score, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(score, top, axis=1), axis=1, kind="stable")
    return np.take_along_axis(top, order, axis=1)


def _explore(
    stage: np.ndarray, slots: np.ndarray, propensity: np.ndarray, funnel: Funnel, rng: np.random.Generator
) -> None:
    """Give the last slot of some requests to a random ad that has no slot; changes all three arrays in place."""
    others = stage.shape[1] - funnel.num_winners + 1
    lucky = _top(np.where(stage == WINNER, -np.inf, rng.random(stage.shape)), 1)[:, 0]
    keep = rng.random(len(stage)) * others < 1  # the ad that held the slot is one of those drawn from
    explored = np.flatnonzero(rng.random(len(stage)) < funnel.explore_rate)
    moved = explored[~keep[explored]]
    stage[moved, slots[moved, -1]] = CANDIDATE
    slots[moved, -1] = lucky[moved]
    stage[moved, slots[moved, -1]] = WINNER
    propensity[explored, slots[explored, -1]] = funnel.explore_rate / others


def _choose_logged(stage: np.ndarray, funnel: Funnel, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """All winners, and a uniform sample of each dropped stage weighted by what it stands for."""
    logged = stage == WINNER
    weight = np.ones(stage.shape, dtype=np.float32)
    for code, limit in ((CANDIDATE, funnel.logged_candidates), (ELIGIBLE, funnel.logged_eligible)):
        members = stage == code
        counts = members.sum(axis=1)
        if limit is None:
            logged |= members
            continue
        sample = _top(np.where(members, rng.random(stage.shape), -1.0), limit)
        chosen = np.zeros_like(logged)
        np.put_along_axis(chosen, sample, True, axis=1)
        chosen &= members
        logged |= chosen
        weight = np.where(chosen, (counts / np.maximum(chosen.sum(axis=1), 1))[:, None], weight).astype(np.float32)
    return logged, weight
