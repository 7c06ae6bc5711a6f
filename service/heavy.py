"""The heavy stage: survivors re-ranked by the heavy ranker, or the reason why not.

Three steps, so that what prepares a call and what runs a model are limited apart: survivors become calls
(:func:`heavy_calls`), calls become logits (:func:`run_calls`, wherever and together with whatever else), logits become
utilities (:func:`heavy_scores`). Releases that name the same heavy ranker share one call, and its user side is computed
once for all survivors. Shapes: K survivors, N those of one heavy ranker, R requests, T tasks of a heavy ranker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from contracts.encoding import Encoded
from contracts.probability import sigmoid
from service.heavies import LoadedHeavy
from service.light import Ranking, Scored

Reason = Literal["deadline", "failed", "absent", "overloaded"]


class HeavyUnavailableError(Exception):
    """The heavy ranker gave no answer in time; the light order stands."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class HeavyInput:
    """Inputs of one heavy ranker: one encoded query, and the pair features of all candidates where they were sent."""

    heavy: LoadedHeavy
    query: Encoded
    pair: Encoded | None


@dataclass(frozen=True, kw_only=True)
class HeavyCall:
    """What one heavy ranker is asked for one request.

    Args:
        heavy: The ranker.
        query: One row.
        ads: The survivors' encoded features [N].
        pair: Their pair features [N], where the ranker has any.
        members: Their places among the survivors, int64 [N].
    """

    heavy: LoadedHeavy
    query: Encoded
    ads: Encoded
    pair: Encoded | None
    members: np.ndarray


@dataclass(frozen=True, kw_only=True)
class HeavyScores:
    """Probabilities by task [K], NaN where an ad's heavy ranker lacks it, and utilities [K], in survivor order.

    ``logits`` are those of the probabilities.
    """

    probabilities: dict[str, np.ndarray]
    logits: dict[str, np.ndarray]
    utilities: np.ndarray

    def take(self, order: np.ndarray) -> "HeavyScores":
        return HeavyScores(
            probabilities={task: values[order] for task, values in self.probabilities.items()},
            logits={task: values[order] for task, values in self.logits.items()},
            utilities=self.utilities[order],
        )


def heavy_calls(ranking: Ranking, scored: Sequence[Scored], inputs: Mapping[str, HeavyInput]) -> tuple[HeavyCall, ...]:
    """What to ask the heavy rankers of the survivors.

    Args:
        ranking: The survivors.
        scored: The pools that they come from.
        inputs: By version of the heavy ranker.

    Raises:
        HeavyUnavailableError: A release has no heavy ranker.
    """
    owners = set(ranking.owners.tolist())
    bare = sorted({scored[owner].release.scenario for owner in owners if not scored[owner].release.heavy})
    if bare:
        raise HeavyUnavailableError("absent", f"the release of {', '.join(bare)} has no heavy ranker")
    calls = []
    for version, given in inputs.items():
        mine = [owner for owner in owners if _version(scored[owner]) == version]
        asks_all = len(mine) == len(scored)  # as nearly always
        members = np.arange(len(ranking)) if asks_all else np.flatnonzero(np.isin(ranking.owners, mine))
        if len(members):
            chosen = ranking if asks_all else ranking.take(members)
            ads, pair = ad_rows(chosen, scored), pair_rows(chosen, scored, given)
            calls.append(HeavyCall(heavy=given.heavy, query=given.query, ads=ads, pair=pair, members=members))
    return tuple(calls)


def run_calls(calls: Sequence[HeavyCall]) -> list[np.ndarray]:
    """Logits [N, T] of each call, all of one heavy ranker: R user sides once, and the ads of all in one mixed batch.

    Raises:
        ValueError: A logit is not finite.
    """
    serving = calls[0].heavy.serving
    if serving is None:
        raise TypeError(f"the heavy ranker {calls[0].heavy.version} is run by another host")
    counts = [len(call.ads) for call in calls]
    state = serving.encode_request(_stacked([call.query for call in calls]))
    pairs = [call.pair for call in calls if call.pair is not None]
    index = np.repeat(np.arange(len(calls)), counts)
    ads = _stacked([call.ads for call in calls])
    logits = serving.score(state, ads, _stacked(pairs) if pairs else None, index)
    if not np.isfinite(logits).all():
        raise ValueError("a logit is not finite")
    return np.split(logits, np.cumsum(counts)[:-1])


def heavy_scores(
    ranking: Ranking, scored: Sequence[Scored], calls: Sequence[HeavyCall], results: Sequence[np.ndarray]
) -> HeavyScores:
    """Logits [N, T] of each call to what orders the survivors."""
    tasks = list(dict.fromkeys(task for call in calls for task in call.heavy.tasks))
    logits = {task: np.full(len(ranking), np.nan) for task in tasks}
    probabilities = {task: np.full(len(ranking), np.nan) for task in tasks}
    utilities = np.zeros(len(ranking))
    for call, result in zip(calls, results, strict=True):
        computed = sigmoid(result)
        for column, task in enumerate(call.heavy.tasks):
            logits[task][call.members] = result[:, column]
            probabilities[task][call.members] = computed[:, column]
        utilities[call.members] = _utilities(ranking.take(call.members), scored, computed)
    return HeavyScores(logits=logits, probabilities=probabilities, utilities=utilities)


def _version(part: Scored) -> str | None:
    return None if part.release.heavy is None else part.release.heavy.version


def _stacked(rows: Sequence[Encoded]) -> Encoded:
    if len(rows) == 1:
        return rows[0]
    return Encoded(np.concatenate([part.ids for part in rows]), np.concatenate([part.floats for part in rows]))


def ad_rows(chosen: Ranking, scored: Sequence[Scored]) -> Encoded:
    """The survivors' encoded features, gathered from the live index of each one's release."""
    if len(scored) == 1:
        return _ads_of(scored[0], chosen.places)
    parts, order = [], []
    for owner in np.unique(chosen.owners):
        members = np.flatnonzero(chosen.owners == owner)
        parts.append(_ads_of(scored[owner], chosen.places[members]))
        order.append(members)
    back = np.argsort(np.concatenate(order))
    ids = np.concatenate([part.ids for part in parts])[back]
    floats = np.concatenate([part.floats for part in parts])[back]
    return Encoded(ids, floats)


def _ads_of(part: Scored, places: np.ndarray) -> Encoded:
    """Encoded features of ads [K] of one pool."""
    release, rows = part.release, part.pool.rows[places]
    ads, unknown = release.live.heavy(rows), release.cold.encoded
    if ads is None or unknown is None:
        raise TypeError(f"the release of {release.scenario} has no features for a heavy ranker")
    cold = rows < 0
    if cold.any():
        ads.ids[cold], ads.floats[cold] = unknown.ids, unknown.floats
    return ads


def pair_rows(chosen: Ranking, scored: Sequence[Scored], given: HeavyInput) -> Encoded | None:
    """Their pair features, those of an ad of which the request tells nothing as missing; None where there are none."""
    if given.heavy.no_pair is None:
        return None
    if given.pair is None:
        return given.heavy.no_pair.take(np.zeros(len(chosen), np.intp))
    return given.pair.take(chosen.gather([part.pool.positions for part in scored]))


def _utilities(chosen: Ranking, scored: Sequence[Scored], probabilities: np.ndarray) -> np.ndarray:
    """Bid times the heavy probability [N, T] of what each ad's objective pays for; objectives are the release's."""
    codes = chosen.gather([part.pool.objectives for part in scored])
    bids = chosen.gather([part.pool.bids for part in scored])
    if len(scored) == 1:
        return bids * scored[0].release.heavy_objectives.probability(probabilities, codes)
    paid = np.zeros(len(chosen))
    for owner in np.unique(chosen.owners):
        mine = chosen.owners == owner
        paid[mine] = scored[owner].release.heavy_objectives.probability(probabilities[mine], codes[mine])
    return bids * paid
