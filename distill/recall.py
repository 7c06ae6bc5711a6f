"""What of the heavy ranker's best survives the light stage, for requests whose whole eligible pool the teacher scored.

Orders say by what ads are ranked, rankings by whom:

    utility           bid times the probability of what the ad's objective pays for
    equal bids, TASK  every ad bids the same for the same outcome: the probability of TASK alone

    student                the light ranker
    bid x historical rate  by the ad's rate so far, without any model; at equal bids by that rate alone
    bid only               by bid (in the order utility)
    random                 all survivors drawn at random

Shapes: C ads of one request, H heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from contracts.metrics import recall_at, utility_regret
from contracts.probability import sigmoid
from distill.scoring import ScoredPairs

UTILITY, EQUAL_BIDS = "utility", "equal bids"
STUDENT, HISTORICAL, BID_ONLY, RANDOM = "student", "bid x historical rate", "bid only", "random"
TOP_K = 10
POOL_SIZE = 1_000
SURVIVORS = (10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1_000)


class RecallCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One ranking in one order, over the number of survivors, averaged over requests.

    Args:
        order: ``utility``, or ``equal bids, TASK``.
        ranking: ``student``, ``bid x historical rate``, ``bid only`` or ``random``.
        recall: Share of the heavy top k among the survivors.
        utility_lost: Share of the heavy top k's utility that is lost because they are chosen among the survivors.
        regret: On simulated logs, share of the true utility of the k best ads by the truth that is lost because the
            heavy ranker chooses k among the survivors; empty elsewhere.
        recall_low, recall_high, utility_lost_low, utility_lost_high, regret_low, regret_high: Bounds of the 95 %
            bootstrap interval over requests at each point, NaN where undefined.
    """

    order: str
    ranking: str
    recall: list[float]
    utility_lost: list[float]
    regret: list[float] = []
    recall_low: list[float] = []
    recall_high: list[float] = []
    utility_lost_low: list[float] = []
    utility_lost_high: list[float] = []
    regret_low: list[float] = []
    regret_high: list[float] = []


class RecallReport(msgspec.Struct, frozen=True, kw_only=True):
    """Recall over requests with fully scored pools.

    Args:
        requests: How many there are.
        pool_size: Fewest and most eligible ads of one.
        top_k: Heavy ads that should survive.
        survivors: Points of the curves.
        curves: One for each order and ranking.
        heavy_regret: On simulated logs by order: what the heavy ranker alone, choosing k of the whole pool, loses
            against the truth, with the bounds of its interval; no light stage can be expected to lose less.
    """

    requests: int
    pool_size: tuple[int, int]
    top_k: int
    survivors: list[int]
    curves: list[RecallCurve]
    heavy_regret: dict[str, tuple[float, float, float]] = {}

    def curve(self, order: str, ranking: str) -> RecallCurve | None:
        """The curve of an order and a ranking; None where the log could not give it."""
        return next((curve for curve in self.curves if (curve.order, curve.ranking) == (order, ranking)), None)

    def at(self, order: str, ranking: str, survivors: int) -> float:
        """Recall at one number of survivors; NaN where there is no such curve or point."""
        curve = self.curve(order, ranking)
        if curve is None or survivors not in self.survivors:
            return float("nan")
        return curve.recall[self.survivors.index(survivors)]


@dataclass(frozen=True)
class _Ranking:
    """Utilities [C] of one request by the heavy ranker and by who chooses the survivors."""

    order: str
    ranking: str
    heavy: np.ndarray
    light: np.ndarray


def measure_recall(
    pairs: ScoredPairs, *, top_k: int = TOP_K, pool_size: int = POOL_SIZE, survivors: tuple[int, ...] = SURVIVORS
) -> RecallReport | None:
    """Recall and utility lost by truncation; None where no request has ``pool_size`` scored ads.

    Args:
        pairs: All pairs of the evaluated requests.
        top_k: Heavy ads that should survive.
        pool_size: Least number of eligible ads with teacher scores of a request that counts as whole.
        survivors: Numbers of survivors to measure at.
    """
    pools = list(_pools(pairs.request, pool_size))
    if not pools:
        return None
    sums: dict[tuple[str, str], list[np.ndarray]] = {}
    for rows in pools:
        for ranking in _rankings(pairs, rows):
            points = [
                (
                    recall_at(ranking.heavy, ranking.light, top_k, m),
                    utility_regret(ranking.heavy, ranking.light, top_k, m),
                )
                for m in survivors
            ]
            sums.setdefault((ranking.order, ranking.ranking), []).append(np.array(points))
    sizes = [len(rows) for rows in pools]
    return RecallReport(
        requests=len(pools),
        pool_size=(min(sizes), max(sizes)),
        top_k=top_k,
        survivors=list(survivors),
        curves=[_mean_curve(order, ranking, np.array(points)) for (order, ranking), points in sums.items()],
    )


def _mean_curve(order: str, ranking: str, points: np.ndarray) -> RecallCurve:
    """Mean over requests of points [requests, survivors, 2]; sums that differ by rounding alone lose nothing."""
    recall, lost = points.mean(axis=0).T
    return RecallCurve(
        order=order, ranking=ranking, recall=recall.tolist(), utility_lost=np.maximum(lost, 0.0).tolist()
    )


def _pools(request: np.ndarray, pool_size: int) -> Iterator[np.ndarray]:
    """Positions of the pairs of each request that has enough of them."""
    counts = np.bincount(request)
    order = np.argsort(request, kind="stable")
    ends = np.cumsum(counts)
    for whole in np.flatnonzero(counts >= pool_size):
        yield order[ends[whole] - counts[whole] : ends[whole]]


def _rankings(pairs: ScoredPairs, rows: np.ndarray) -> Iterator[_Ranking]:
    heavy, light = sigmoid(pairs.teacher[rows]), sigmoid(pairs.student[rows])
    random = np.zeros(len(rows))  # a tied order stands for all its permutations
    for head, task in enumerate(pairs.tasks):
        order = f"{EQUAL_BIDS}, {task}"
        yield _Ranking(order, STUDENT, heavy[:, head], light[:, head])
        yield _Ranking(order, RANDOM, heavy[:, head], random)
    bid = pairs.bid[rows]
    if np.isnan(bid).all():
        return
    bid = np.where(np.isnan(bid), np.nanmedian(bid), bid)
    utility = bid * _paid_for(heavy, pairs.pays_for[rows])
    yield _Ranking(UTILITY, STUDENT, utility, bid * _paid_for(light, pairs.pays_for[rows]))
    yield _Ranking(UTILITY, RANDOM, utility, random)
    yield _Ranking(UTILITY, BID_ONLY, utility, bid)


def _paid_for(probabilities: np.ndarray, pays_for: np.ndarray) -> np.ndarray:
    """The probability [C] of what each ad's objective pays for: a head, or the impression, which is certain."""
    with_impression = np.concatenate([probabilities, np.ones((len(probabilities), 1))], axis=1)
    return with_impression[np.arange(len(pays_for)), pays_for]
