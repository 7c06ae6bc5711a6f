"""What of the heavy ranker's best survives the light stage, for requests whose whole eligible pool the teacher scored.

Orders say by what ads are ranked, rankings by whom:

    utility           bid times the probability of what the ad's objective pays for
    equal bids, TASK  every ad bids the same for the same outcome: the probability of TASK alone

    student                the light ranker
    bid x historical rate  by the ad's rate so far, without any model; at equal bids by that rate alone
    bid only               by bid (in the order utility)
    random                 all survivors drawn at random

Shapes: P pools, C ads of one pool, H heads, M numbers of survivors, B replicates.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from contracts.probability import sigmoid
from distill.replicates import MIN_REQUESTS, draw_replicates, intervals
from distill.scoring import ScoredPairs
from distill.survival import NUM_FIGURES, survival

UTILITY, EQUAL_BIDS = "utility", "equal bids"
STUDENT, HISTORICAL, BID_ONLY, RANDOM = "student", "bid x historical rate", "bid only", "random"
_HEAVY = "heavy ranker"  # as if its order chose the survivors: its own regret
TOP_K = 10
POOL_SIZE = 1_000
MIN_POOLS = 50
HEADLINE_SURVIVORS = 100
"""Survivors at which recall is told where only one number is."""

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
class PoolCurves:
    """The report with what comparisons need.

    Args:
        report: As it is written.
        requests: int [P], whose pools they are.
        points: By order and ranking, float64 [P, 3, M]: recall, utility lost and regret of each pool, NaN where
            undefined.
    """

    report: RecallReport
    requests: np.ndarray
    points: dict[tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class _Ranking:
    """Utilities [C] of one request by the heavy ranker, by who chooses the survivors, and by the truth where known."""

    order: str
    ranking: str
    heavy: np.ndarray
    light: np.ndarray
    truth: np.ndarray | None


def pool_rows(request: np.ndarray, pool_size: int = POOL_SIZE) -> np.ndarray:
    """int [n], positions of the pairs of requests that have at least ``pool_size`` of them, request by request."""
    counts = np.bincount(request)
    rows = np.flatnonzero(counts[request] >= pool_size)
    return rows[np.argsort(request[rows], kind="stable")]


def fitting_pool_size(request: np.ndarray, survivors: int = HEADLINE_SURVIVORS) -> int:
    """The pool size to measure where nobody names one: the usual one, or a smaller one that the log has.

    Where no request has ``POOL_SIZE`` ads, it is the largest that ``MIN_POOLS`` requests reach, or fewer where there
    are no more, as long as something is cut at so many survivors.

    Example:
        >>> fitting_pool_size(np.repeat([0, 1], [300, 200])), fitting_pool_size(np.repeat([0, 1], [90, 1_200]))
        (200, 1000)
    """
    counts = np.sort(np.bincount(request))[::-1]
    cutting = counts[counts > survivors]
    if not len(cutting) or cutting[0] >= POOL_SIZE:
        return POOL_SIZE
    return int(cutting[min(MIN_POOLS, len(cutting)) - 1])


def measure_recall(
    pairs: ScoredPairs,
    *,
    rates: np.ndarray | None = None,
    truth: np.ndarray | None = None,
    top_k: int = TOP_K,
    pool_size: int = POOL_SIZE,
    survivors: tuple[int, ...] = SURVIVORS,
) -> PoolCurves | None:
    """Recall, utility lost by truncation and regret; None where no request has ``pool_size`` scored ads.

    Args:
        pairs: All pairs of the evaluated requests.
        rates: float64 [n, H], historical rates of the pairs that :func:`pool_rows` gives; None leaves them out.
        truth: float64 [n, H], true probabilities of these pairs; None where nobody knows them.
        top_k: Heavy ads that should survive.
        pool_size: Least number of eligible ads with teacher scores of a request that counts as whole.
        survivors: Numbers of survivors to measure at.
    """
    rows = pool_rows(pairs.request, pool_size)
    if not len(rows):
        return None
    requests, starts, sizes = np.unique(pairs.request[rows], return_index=True, return_counts=True)
    points: dict[tuple[str, str], np.ndarray] = {}
    for pool, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        here = slice(start, start + size)
        facts = [None if values is None else values[here] for values in (rates, truth)]
        for ranking in _rankings(pairs, rows[here], *facts):
            undefined = np.full((len(requests), NUM_FIGURES, len(survivors)), np.nan)
            curves = points.setdefault((ranking.order, ranking.ranking), undefined)
            curves[pool] = survival(ranking.heavy, ranking.light, ranking.truth, top_k, survivors)
    heavy = {order: curve[:, :, -1:] for (order, ranking), curve in points.items() if ranking == _HEAVY}
    report = RecallReport(
        requests=len(requests),
        pool_size=(int(sizes.min()), int(sizes.max())),
        top_k=top_k,
        survivors=list(survivors),
        curves=[_curve(*key, curve, truth is not None) for key, curve in points.items() if key[1] != _HEAVY],
        heavy_regret={order: _heavy_regret(curve) for order, curve in heavy.items()},
    )
    return PoolCurves(report, requests, points)


def mean_over_pools(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [K] over pools, and the bounds [2, K] of its interval, NaN of fewer than ten pools.

    Args:
        points: float64 [P, K]; a pool whose value is NaN is left out.
    """
    defined = ~np.isnan(points)
    values = np.where(defined, points, 0.0)
    with np.errstate(invalid="ignore"):
        mean = values.sum(axis=0) / defined.sum(axis=0)
        if len(points) < MIN_REQUESTS:
            return mean, np.full((2, points.shape[1]), np.nan)
        every = np.arange(len(points))
        drawn = draw_replicates(every)
        return mean, intervals(drawn.sums(every, values) / drawn.sums(every, defined.astype(np.float64)))


def _curve(order: str, ranking: str, points: np.ndarray, with_truth: bool) -> RecallCurve:
    """Means over pools; sums that differ by rounding alone lose nothing."""
    mean, bounds = (part.reshape(-1, *points.shape[1:]) for part in mean_over_pools(points.reshape(len(points), -1)))
    (recall, lost, regret), (low, high) = mean[0], bounds
    return RecallCurve(
        order=order,
        ranking=ranking,
        recall=recall.tolist(),
        utility_lost=np.maximum(lost, 0.0).tolist(),
        regret=regret.tolist() if with_truth else [],
        recall_low=low[0].tolist(),
        recall_high=high[0].tolist(),
        utility_lost_low=np.maximum(low[1], 0.0).tolist(),
        utility_lost_high=np.maximum(high[1], 0.0).tolist(),
        regret_low=low[2].tolist() if with_truth else [],
        regret_high=high[2].tolist() if with_truth else [],
    )


def _heavy_regret(points: np.ndarray) -> tuple[float, float, float]:
    mean, (low, high) = mean_over_pools(points[:, 2])
    return float(mean[0]), float(low[0]), float(high[0])


def _rankings(
    pairs: ScoredPairs, rows: np.ndarray, rates: np.ndarray | None, truth: np.ndarray | None
) -> Iterator[_Ranking]:
    """Every order and ranking of one pool."""
    heavy, light = sigmoid(pairs.teacher[rows]), sigmoid(pairs.student[rows])
    random = np.zeros(len(rows))  # a tied order stands for all its permutations
    for head, task in enumerate(pairs.tasks):
        order, true = f"{EQUAL_BIDS}, {task}", None if truth is None else truth[:, head]
        yield _Ranking(order, STUDENT, heavy[:, head], light[:, head], true)
        if rates is not None:
            yield _Ranking(order, HISTORICAL, heavy[:, head], rates[:, head], true)
        yield _Ranking(order, RANDOM, heavy[:, head], random, true)
        if true is not None:
            yield _Ranking(order, _HEAVY, heavy[:, head], heavy[:, head], true)
    bid = pairs.bid[rows]
    if np.isnan(bid).all():
        return
    bid = np.where(np.isnan(bid), np.nanmedian(bid), bid)
    pays_for = pairs.pays_for[rows]
    utility, true = bid * _paid_for(heavy, pays_for), None if truth is None else bid * _paid_for(truth, pays_for)
    yield _Ranking(UTILITY, STUDENT, utility, bid * _paid_for(light, pays_for), true)
    if rates is not None:
        yield _Ranking(UTILITY, HISTORICAL, utility, bid * _paid_for(rates, pays_for), true)
    yield _Ranking(UTILITY, BID_ONLY, utility, bid, true)
    yield _Ranking(UTILITY, RANDOM, utility, random, true)
    if true is not None:
        yield _Ranking(UTILITY, _HEAVY, utility, utility, true)


def _paid_for(probabilities: np.ndarray, pays_for: np.ndarray) -> np.ndarray:
    """The probability [C] of what each ad's objective pays for: a head, or the impression, which is certain."""
    with_impression = np.concatenate([probabilities, np.ones((len(probabilities), 1))], axis=1)
    return with_impression[np.arange(len(pays_for)), pays_for]
