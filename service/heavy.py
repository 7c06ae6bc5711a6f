"""The heavy stage: survivors re-ranked by the heavy ranker, in process, or the reason why not.

Releases that name the same heavy ranker share one call, and its user side is computed once for all survivors. Shapes: K
survivors, N those of one heavy ranker, T its tasks.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeVar

import numpy as np

from contracts.encoding import Encoded
from contracts.probability import sigmoid
from service.deadline import Deadline
from service.light import Ranking, Scored
from service.releases import LoadedHeavy

log = logging.getLogger(__name__)

T = TypeVar("T")


class HeavyUnavailableError(Exception):
    """The heavy ranker gave no answer in time; the light order stands."""

    def __init__(self, reason: Literal["deadline", "failed", "absent"], detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class HeavyInput:
    """Inputs of one heavy ranker: one encoded query, and the pair features of all candidates where they were sent."""

    heavy: LoadedHeavy
    query: Encoded
    pair: Encoded | None


@dataclass(frozen=True, kw_only=True)
class HeavyScores:
    """Logits and probabilities by task [K], NaN where an ad's heavy ranker lacks it, and utilities [K], in survivor
    order."""

    logits: dict[str, np.ndarray]
    probabilities: dict[str, np.ndarray]
    utilities: np.ndarray

    def take(self, order: np.ndarray) -> "HeavyScores":
        return HeavyScores(
            logits={task: values[order] for task, values in self.logits.items()},
            probabilities={task: values[order] for task, values in self.probabilities.items()},
            utilities=self.utilities[order],
        )


def rank_heavy(
    ranking: Ranking,
    scored: Sequence[Scored],
    inputs: Mapping[str, HeavyInput],
    deadline: Deadline,
    executor: Executor | None,
) -> HeavyScores:
    """Score the survivors with the heavy ranker of their release.

    Args:
        ranking: The survivors.
        scored: The pools that they come from.
        inputs: By version of the heavy ranker.
        deadline: Given up when it passes.
        executor: Runs the model where there is a deadline, so that an answer need not wait for a late one.

    Raises:
        HeavyUnavailableError: A release has no heavy ranker, the deadline passed, or the model failed.
    """
    bare = sorted(
        {scored[owner].release.scenario for owner in set(ranking.owners.tolist()) if not scored[owner].release.heavy}
    )
    if bare:
        raise HeavyUnavailableError("absent", f"the release of {', '.join(bare)} has no heavy ranker")
    if deadline.has_passed:
        raise HeavyUnavailableError("deadline", "it passed before the heavy stage")
    scores = _within(deadline, executor, lambda: _score(ranking, scored, inputs))
    if deadline.has_passed:
        raise HeavyUnavailableError("deadline", "it passed in the heavy stage")
    return scores


def _within(deadline: Deadline, executor: Executor | None, work: Callable[[], T]) -> T:
    try:
        if executor is None or deadline.at == inf:
            return work()
        future = executor.submit(work)
        try:
            return future.result(timeout=max(deadline.remaining_s(), 0))
        except FutureTimeoutError:
            future.cancel()
            raise HeavyUnavailableError("deadline", "it passed in the heavy stage") from None
    except HeavyUnavailableError:
        raise
    except Exception as error:  # an auction goes on with the light order whatever happens here
        log.exception("heavy ranker failed")
        raise HeavyUnavailableError("failed", f"{type(error).__name__}: {error}") from error


def _score(ranking: Ranking, scored: Sequence[Scored], inputs: Mapping[str, HeavyInput]) -> HeavyScores:
    tasks = list(dict.fromkeys(task for given in inputs.values() for task in given.heavy.tasks))
    logits = {task: np.full(len(ranking), np.nan) for task in tasks}
    probabilities = {task: np.full(len(ranking), np.nan) for task in tasks}
    utilities = np.zeros(len(ranking))
    for version, given in inputs.items():
        mine = [
            owner for owner, part in enumerate(scored) if part.release.heavy and part.release.heavy.version == version
        ]
        members = np.flatnonzero(np.isin(ranking.owners, mine))
        if len(members) == 0:
            continue
        chosen = ranking.take(members)
        scores = _logits(chosen, scored, given)
        computed = sigmoid(scores)
        if not np.isfinite(computed).all():
            raise ValueError("a logit is not finite")
        for column, task in enumerate(given.heavy.tasks):
            logits[task][members] = scores[:, column]
            probabilities[task][members] = computed[:, column]
        utilities[members] = _utilities(chosen, scored, computed)
    return HeavyScores(logits=logits, probabilities=probabilities, utilities=utilities)


def _logits(chosen: Ranking, scored: Sequence[Scored], given: HeavyInput) -> np.ndarray:
    """[N, T], the user side computed once."""
    serving = given.heavy.serving
    ads, pair = _ad_rows(chosen, scored), _pair_rows(chosen, scored, given)
    request_index = np.zeros(len(chosen), np.int64)
    return serving.score(serving.encode_request(given.query), ads, pair, request_index)


def _ad_rows(chosen: Ranking, scored: Sequence[Scored]) -> Encoded:
    """The survivors' encoded features, gathered from the live index of each one's release."""
    parts, order = [], []
    for owner in np.unique(chosen.owners):
        members = np.flatnonzero(chosen.owners == owner)
        release, rows = scored[owner].release, scored[owner].pool.rows[chosen.places[members]]
        ads = release.live.heavy(rows)
        cold = rows < 0
        if cold.any():
            ads.ids[cold], ads.floats[cold] = release.cold.encoded.ids, release.cold.encoded.floats
        parts.append(ads)
        order.append(members)
    back = np.argsort(np.concatenate(order))
    ids = np.concatenate([part.ids for part in parts])[back]
    floats = np.concatenate([part.floats for part in parts])[back]
    return Encoded(ids, floats)


def _pair_rows(chosen: Ranking, scored: Sequence[Scored], given: HeavyInput) -> Encoded | None:
    if given.heavy.no_pair is None:
        return None
    if given.pair is None:
        return given.heavy.no_pair.take(np.zeros(len(chosen), np.intp))
    return given.pair.take(chosen.gather([part.pool.positions for part in scored]))


def _utilities(chosen: Ranking, scored: Sequence[Scored], probabilities: np.ndarray) -> np.ndarray:
    """Bid times the heavy probability [N, T] of what each ad's objective pays for; objectives are the release's."""
    paid = np.zeros(len(chosen))
    codes = chosen.gather([part.pool.objectives for part in scored])
    for owner in np.unique(chosen.owners):
        mine = chosen.owners == owner
        paid[mine] = scored[owner].release.heavy_objectives.probability(probabilities[mine], codes[mine])
    return chosen.gather([part.pool.bids for part in scored]) * paid
