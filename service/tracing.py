"""How far each candidate of an explained request came, and why no further.

Shapes: C candidates, P ads of one pool, K ads of the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from contracts.probability import sigmoid
from indexing.id_texts import texts_at
from indexing.overlay_files import WITHDRAWN
from service.api import CandidateTrace, Stage
from service.light import Ranking, Scored
from service.pools import Reason

if TYPE_CHECKING:
    from service.answer import Result

MAX_TRACED = 1_000
"""Candidates of a request whose way is told."""

_STAGES: tuple[Stage, ...] = get_args(Stage)
_DROPPED, _LIGHT, _SURVIVOR, _ANSWER = range(len(_STAGES))
_WHY_LEFT = {_LIGHT: "survivors", _SURVIVOR: "limit", _ANSWER: None}


def traced(result: "Result", shown: Ranking, ranks: Sequence[np.ndarray]) -> CandidateTrace:
    """The way of the first candidates, in the order of the request or in that in which they were retrieved.

    Args:
        result: Everything that ranking found.
        shown: The ads of the answer [K].
        ranks: Of :func:`light_ranks`.
    """
    count = _num_positions(result)
    stages = np.full(count, _DROPPED)
    for part in result.scored:
        stages[part.pool.positions] = _LIGHT
    positions = [part.pool.positions for part in result.scored]
    stages[result.final.gather(positions)] = _SURVIVOR
    stages[shown.gather(positions)] = _ANSWER
    told = np.arange(count) if result.ids is not None else np.flatnonzero(stages != _DROPPED)
    places = told[:MAX_TRACED]
    ids, columns = _ids_at(result, places), _Columns(result, count, places)
    return CandidateTrace(
        ids=ids,
        stages=[_STAGES[stage] for stage in stages[places].tolist()],
        reasons=_reasons(result, ids, places, stages[places].tolist()),
        light_utilities=columns.of_scored([part.utilities for part in result.scored]),
        omitted=len(told) - len(places),
        light_ranks=_whole(columns.of_scored(ranks)),
        ranks=_whole(columns.of_survivors(np.arange(1, len(result.final) + 1))),
        utilities=columns.of_survivors(result.final.utilities),
        bids=columns.of_scored([part.pool.bids for part in result.scored]),
        objectives=_objectives(result, columns),
        light={task: columns.of_scored(values) for task, values in _light(result.scored).items()},
        heavy=None
        if result.heavy is None
        else {task: columns.of_survivors(values) for task, values in result.heavy.probabilities.items()},
    )


def light_ranks(scored: Sequence[Scored]) -> list[np.ndarray]:
    """Place of each ad of each pool [P] in the light order of all together, 1 the best; as survivors are chosen, equal
    ones in the order of the request."""
    utilities = np.concatenate([part.utilities for part in scored])
    positions = np.concatenate([part.pool.positions for part in scored])
    ranks = np.empty(len(utilities), np.int64)
    ranks[np.lexsort((positions, -utilities))] = np.arange(1, len(utilities) + 1)
    return np.split(ranks, np.cumsum([len(part.utilities) for part in scored])[:-1])


def numbers(values: np.ndarray) -> list[float | None]:
    """A list with null for NaN."""
    return [None if value != value else value for value in values.tolist()]


@dataclass(frozen=True)
class _Columns:
    """Spreads columns over the candidates that are told, ``places`` of ``count``; null where there is no value."""

    result: "Result"
    count: int
    places: np.ndarray

    def of_scored(self, columns: Sequence[np.ndarray]) -> list[float | None]:
        """One column [P] of each pool."""
        spread = np.full(self.count, np.nan)
        for part, column in zip(self.result.scored, columns, strict=True):
            spread[part.pool.positions] = column
        return numbers(spread[self.places])

    def of_survivors(self, column: np.ndarray) -> list[float | None]:
        """A column over the survivors in final order."""
        spread = np.full(self.count, np.nan)
        spread[self.result.final.gather([part.pool.positions for part in self.result.scored])] = column
        return numbers(spread[self.places])


def _whole(values: list[float | None]) -> list[int | None]:
    return [None if value is None else int(value) for value in values]


def _light(scored: Sequence[Scored]) -> dict[str, list[np.ndarray]]:
    """Probabilities by task, one column [P] a pool, NaN where its model lacks the task."""
    tasks = dict.fromkeys(task for part in scored for task in part.release.tasks)
    return {
        task: [
            sigmoid(part.logits[:, part.release.tasks.index(task)])
            if task in part.release.tasks
            else np.full(len(part.utilities), np.nan)
            for part in scored
        ]
        for task in tasks
    }


def _objectives(result: "Result", columns: _Columns) -> list[str | None]:
    names: list[str | None] = [None] * len(columns.places)
    for part in result.scored:
        own = part.release.objectives.names
        codes = np.full(columns.count, -1)
        codes[part.pool.positions] = part.pool.objectives
        names = [own[code] if code >= 0 else name for code, name in zip(codes[columns.places], names, strict=True)]
    return names


def _num_positions(result: "Result") -> int:
    if result.ids is not None:
        return len(result.ids)
    return max((int(part.pool.positions.max()) + 1 for part in result.scored if len(part.pool.positions)), default=0)


def _ids_at(result: "Result", places: np.ndarray) -> list[str]:
    if result.ids is not None:
        return texts_at(result.ids, places)
    found: dict[int, str] = {}
    for part in result.scored:
        mine = np.isin(part.pool.positions, places)
        found.update(zip(part.pool.positions[mine].tolist(), part.release.live.ids(part.pool.rows[mine]), strict=True))
    return [found[place] for place in places.tolist()]


def _reasons(result: "Result", ids: Sequence[str], places: np.ndarray, stages: Sequence[int]) -> list[str | None]:
    reasons: list[str | None] = []
    for ad_id, place, stage in zip(ids, places.tolist(), stages, strict=True):
        if stage != _DROPPED:
            reasons.append(_WHY_LEFT[stage])
            continue
        reason = Reason(int(result.resolved.reasons[place]))
        reasons.append(_why_inactive(result, ad_id) if reason is Reason.INACTIVE else reason.name.lower())
    return reasons


def _why_inactive(result: "Result", ad_id: str) -> str:
    """What stops an ad now: an update that came meanwhile may have changed it."""
    for part in result.scored:
        live = part.release.live
        rows = live.lookup([ad_id])
        if rows[0] >= 0:
            if by := WITHDRAWN[live.withdrawn(rows)[0]]:
                return by
            return "inactive" if live.servable(rows)[0] else "status"
    return "inactive"
