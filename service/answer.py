"""Puts the ranked columns into the answer. Shapes: K ads of the answer, P ads of one pool, T tasks."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from math import isnan

import msgspec
import numpy as np

from indexing.id_texts import chosen_texts
from service.api import Ads, Degraded, Dropped, Explain, RankRequest, RankResponse, Timing
from service.explaining import explain
from service.features import FeatureNotes
from service.heavy import HeavyScores
from service.light import Ranking, Scored
from service.pools import Resolved
from service.request_inputs import RequestInputs


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ranking found.

    ``inputs`` is what the models were given, ``ids`` are the candidates of the request, None where ads were retrieved;
    ``final`` are all survivors in final order, and ``heavy`` their scores in the same order, None where that is the
    light order.
    """

    inputs: RequestInputs
    ids: Sequence[str] | None
    resolved: Resolved
    scored: Sequence[Scored]
    final: Ranking
    heavy: HeavyScores | None
    degraded: Degraded | None
    notes: FeatureNotes
    arm: str | None = None

    @property
    def num_ranked(self) -> int:
        return sum(len(pool.rows) for pool in self.resolved.pools)

    @property
    def num_candidates(self) -> int:
        """What was handed in or retrieved."""
        return self.num_ranked if self.ids is None else len(self.ids)


def build_response(
    request: RankRequest, request_id: str, result: Result, warnings: list[str], timing: Callable[[], Timing]
) -> RankResponse:
    """The answer to ``request``, cut to its limit; ``timing`` is asked last."""
    shown = _Shown(result, request.limit)
    return RankResponse(
        request_id=request_id,
        release={part.release.scenario: part.release.versions for part in result.scored},
        ads=shown.ads(),
        dropped=Dropped() if result.ids is None else result.resolved.dropped(result.ids),
        arm=result.arm,
        warnings=warnings,
        degraded=result.degraded,
        explain=shown.explain() if request.explain else None,
        timing_ms=timing(),
    )


class _Shown:
    """The first ``limit`` ads of a result, K of them, all where it is None; columns are gathered pool by pool."""

    def __init__(self, result: Result, limit: int | None) -> None:
        self._result = result
        self._ranking = result.final if limit is None else result.final.take(slice(0, limit))
        self._num_shown = len(self._ranking)

    @cached_property
    def _members(self) -> list[np.ndarray]:
        """Places of each pool's ads among those that are shown."""
        return [np.flatnonzero(self._ranking.owners == owner) for owner in range(len(self._result.scored))]

    def ads(self) -> Ads:
        ranking, scored, count = self._ranking, self._result.scored, self._num_shown
        names = [part.release.scenario for part in scored]
        return Ads(
            ids=self._ids(),
            utilities=ranking.utilities.tolist(),
            scenarios=names * count if len(names) == 1 else [names[owner] for owner in ranking.owners.tolist()],
            explored=[False] * count if ranking.propensities is None else ranking.explored.tolist(),
            light=self._light(),
            heavy=self._heavy(),
        )

    def explain(self) -> Explain:
        return explain(self._result, self._ranking, list(self._ids()))

    def _ids(self) -> Sequence[str]:
        ids, scored = self._result.ids, self._result.scored
        if ids is not None:
            return chosen_texts(ids, self._ranking.gather([part.pool.positions for part in scored]))
        found = np.empty(self._num_shown, object)
        for part, members in zip(scored, self._members, strict=True):
            rows = part.pool.rows[self._ranking.places[members]]
            found[members] = part.release.live.ids(rows)
        return found.tolist()

    def _light(self) -> dict[str, list[float | None]]:
        """Probabilities by task [K], null where an ad's model lacks the task."""
        scored = self._result.scored
        if len(scored) == 1:
            return _named(scored[0].release.tasks, scored[0].columns_at(self._ranking.places))
        tasks = dict.fromkeys(task for part in scored for task in part.release.tasks)
        columns = {task: np.full(self._num_shown, np.nan) for task in tasks}
        for part, members in zip(scored, self._members, strict=True):
            own = part.columns_at(self._ranking.places[members])
            for task, probabilities in zip(part.release.tasks, own, strict=True):
                columns[task][members] = probabilities
        return _named(columns, np.array([*columns.values()]))

    def _heavy(self) -> dict[str, list[float | None]] | None:
        if self._result.heavy is None:
            return None
        probabilities = self._result.heavy.probabilities
        return _named(probabilities, np.array([values[: self._num_shown] for values in probabilities.values()]))


def _named(names: Iterable[str], columns: np.ndarray) -> dict[str, list[float | None]]:
    """Lists of columns [T, K] by T names, null for NaN."""
    lists: list[list[float | None]] = columns.tolist()
    if isnan(np.add.reduce(columns, axis=None)):  # one is NaN, as none is infinite
        lists = [[None if value != value else value for value in values] for values in lists]
    return dict(zip(names, lists, strict=True))
