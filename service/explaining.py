"""How an answer came about: for requests that ask it, beside the fast path. Shapes: K ads of the answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np

from contracts.encoding import Encoded
from contracts.layout import SideLayout
from service.api import CandidateTrace, Explain, FeatureReport, Stage
from service.candidates import Reason
from service.features import FeatureNotes
from service.light import Ranking

if TYPE_CHECKING:
    from service.answer import Result

MAX_TRACED = 1_000
"""Candidates of a request whose way is told."""

_STAGES: tuple[Stage, ...] = get_args(Stage)
_DROPPED, _LIGHT, _SURVIVOR, _ANSWER = range(len(_STAGES))
_WHY_LEFT = {_LIGHT: "survivors", _SURVIVOR: "limit", _ANSWER: None}


def explain(result: "Result", shown: Ranking) -> Explain:
    """Explain an answer.

    Args:
        result: Everything that ranking found.
        shown: The ads of the answer [K], the first of ``result.final``.
    """
    scored = result.scored
    names = [scored[owner].release.objectives.names for owner in shown.owners.tolist()]
    codes = shown.gather([part.pool.objectives for part in scored]).tolist()
    heavy = None if result.heavy is None else result.heavy.logits
    return Explain(
        bids=shown.gather([part.pool.bids for part in scored]).tolist(),
        objectives=[names_of[code] for names_of, code in zip(names, codes, strict=True)],
        light_utilities=shown.gather([part.utilities for part in scored]).tolist(),
        light_logits=_light_logits(result, shown),
        heavy_logits=None if heavy is None else {task: _numbers(part[: len(shown)]) for task, part in heavy.items()},
        counts={"candidates": result.num_candidates, "ranked": result.num_ranked, "survivors": len(result.final)},
        features=_features(result.notes),
        candidates=_traced(result, shown),
    )


def _light_logits(result: "Result", shown: Ranking) -> dict[str, list[float | None]]:
    """By task [K], null where an ad's model lacks the task."""
    tasks = dict.fromkeys(task for part in result.scored for task in part.release.tasks)
    columns = {task: np.full(len(shown), np.nan) for task in tasks}
    for owner, part in enumerate(result.scored):
        mine = np.flatnonzero(shown.owners == owner)
        for head, task in enumerate(part.release.tasks):
            columns[task][mine] = part.logits[shown.places[mine], head]
    return {task: _numbers(column) for task, column in columns.items()}


def _features(notes: FeatureNotes) -> dict[str, FeatureReport]:
    """What each model found, and what it was given."""
    return {
        version: FeatureReport(
            missing=report.missing,
            out_of_vocabulary=report.out_of_vocabulary,
            encoded=_by_feature(*notes.encoded[version]),
        )
        for version, report in notes.reports.items()
    }


def _by_feature(layout: SideLayout, encoded: Encoded) -> dict[str, list[int | float]]:
    """One row as ids without padding, and floats, by the name of a feature or of a history's field."""
    ids, floats = encoded.ids[0], encoded.floats[0]
    columns = [(column.name, column) for column in layout.bags]
    columns += [(f"{events.name}.{column.name}", column) for events in layout.sequences for column in events.fields]
    values: dict[str, list[int | float]] = {}
    for name, column in columns:
        given = ids[column.start : column.start + column.width]
        values[name] = given[given != 0].tolist()
    for dense in layout.dense:
        values[dense.name] = floats[dense.start : dense.start + dense.width].tolist()
    return values


def _traced(result: "Result", shown: Ranking) -> CandidateTrace:
    """How far the first candidates came, in the order of the request or in that in which they were retrieved."""
    count = _num_positions(result)
    stages, utilities = np.full(count, _DROPPED), np.full(count, np.nan)
    for part in result.scored:
        stages[part.pool.positions], utilities[part.pool.positions] = _LIGHT, part.utilities
    positions = [part.pool.positions for part in result.scored]
    stages[result.final.gather(positions)] = _SURVIVOR
    stages[shown.gather(positions)] = _ANSWER
    told = np.arange(count) if result.ids is not None else np.flatnonzero(stages != _DROPPED)
    places = told[:MAX_TRACED]
    ids = _ids_at(result, places)
    return CandidateTrace(
        ids=ids,
        stages=[_STAGES[stage] for stage in stages[places].tolist()],
        reasons=_reasons(result, ids, places, stages[places].tolist()),
        light_utilities=_numbers(utilities[places]),
        omitted=len(told) - len(places),
    )


def _num_positions(result: "Result") -> int:
    if result.ids is not None:
        return len(result.ids)
    return max((int(part.pool.positions.max()) + 1 for part in result.scored if len(part.pool.positions)), default=0)


def _ids_at(result: "Result", places: np.ndarray) -> list[str]:
    if result.ids is not None:
        return [result.ids[place] for place in places.tolist()]
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
            withdrawn = live.withdrawn(rows)
            if withdrawn is not None and withdrawn[0]:
                return "withdrawn"
            return "inactive" if live.servable(rows)[0] else "status"
    return "inactive"


def _numbers(values: np.ndarray) -> list[float | None]:
    """A list with null for NaN."""
    return [None if value != value else value for value in values.tolist()]
