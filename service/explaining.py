"""How an answer came about: for requests that ask it, beside the fast path. Shapes: K ads of the answer."""

from typing import TYPE_CHECKING

import numpy as np

from contracts.encoding import Encoded
from contracts.layout import SideLayout
from service.api import AdReport, Explain, FeatureReport
from service.features import FeatureNotes
from service.heavy import HeavyInput, ad_rows, pair_rows
from service.light import Ranking
from service.tracing import light_ranks, numbers, traced

if TYPE_CHECKING:
    from service.answer import Result

MAX_DETAILED = 100
"""Ads of an answer whose encoded features are told."""


def explain(result: "Result", shown: Ranking, ids: list[str]) -> Explain:
    """Explain an answer.

    Args:
        result: Everything that ranking found.
        shown: The ads of the answer [K], the first of ``result.final``.
        ids: Their ids.
    """
    scored = result.scored
    names = [scored[owner].release.objectives.names for owner in shown.owners.tolist()]
    codes = shown.gather([part.pool.objectives for part in scored]).tolist()
    heavy = None if result.heavy is None else result.heavy.logits
    ranks = light_ranks(scored)
    return Explain(
        bids=shown.gather([part.pool.bids for part in scored]).tolist(),
        objectives=[names_of[code] for names_of, code in zip(names, codes, strict=True)],
        light_utilities=shown.gather([part.utilities for part in scored]).tolist(),
        light_logits=_light_logits(result, shown),
        heavy_logits=None if heavy is None else {task: numbers(part[: len(shown)]) for task, part in heavy.items()},
        counts={"candidates": result.num_candidates, "ranked": result.num_ranked, "survivors": len(result.final)},
        features=_features(result.notes),
        candidates=traced(result, shown, ranks),
        light_ranks=shown.gather(ranks).tolist(),
        ads=_ads(result, shown.take(slice(0, MAX_DETAILED)), ids),
    )


def _light_logits(result: "Result", shown: Ranking) -> dict[str, list[float | None]]:
    """By task [K], null where an ad's model lacks the task."""
    tasks = dict.fromkeys(task for part in result.scored for task in part.release.tasks)
    columns = {task: np.full(len(shown), np.nan) for task in tasks}
    for owner, part in enumerate(result.scored):
        mine = np.flatnonzero(shown.owners == owner)
        for head, task in enumerate(part.release.tasks):
            columns[task][mine] = part.logits[shown.places[mine], head]
    return {task: numbers(column) for task, column in columns.items()}


def _features(notes: FeatureNotes) -> dict[str, FeatureReport]:
    """What each model found, and what it was given."""
    return {
        version: FeatureReport(
            missing=report.missing,
            out_of_vocabulary=report.out_of_vocabulary,
            encoded={name: values[0] for name, values in _by_feature(*notes.encoded[version]).items()},
        )
        for version, report in notes.reports.items()
    }


def _ads(result: "Result", shown: Ranking, ids: list[str]) -> dict[str, AdReport]:
    """What each heavy ranker was given of its ads among ``shown``; nothing where it was not asked."""
    reports = {}
    for version, given in result.inputs.heavy.items():
        owners = [at for at, part in enumerate(result.scored) if part.release.versions.heavy == version]
        members = np.flatnonzero(np.isin(shown.owners, owners))
        if len(members):
            reports[version] = _ad_report(result, shown.take(members), given, [ids[at] for at in members.tolist()])
    return reports


def _ad_report(result: "Result", chosen: Ranking, given: HeavyInput, ids: list[str]) -> AdReport:
    columns, pair_encoder = result.inputs.columns, given.heavy.encoders.pair_encoder
    pairs = pair_rows(chosen, result.scored, given)
    pair, lacking = {}, []
    if pair_encoder is not None and pairs is not None:
        pair = _by_feature(pair_encoder.layout, pairs)
        lacking = sorted(set(pair_encoder.features) - set({} if columns is None else columns.pair))
    encoded = _by_feature(given.heavy.encoders.ad_encoder.layout, ad_rows(chosen, result.scored))
    return AdReport(ids=ids, encoded=encoded, pair=pair, lacking=lacking)


def _by_feature(layout: SideLayout, encoded: Encoded) -> dict[str, list[list[int | float]]]:
    """Rows as ids without padding, and floats, by the name of a feature or of a history's field."""
    columns = [(column.name, column) for column in layout.bags]
    columns += [(f"{events.name}.{column.name}", column) for events in layout.sequences for column in events.fields]
    values: dict[str, list[list[int | float]]] = {}
    for name, column in columns:
        given = encoded.ids[:, column.start : column.start + column.width]
        values[name] = [row[row != 0].tolist() for row in given]
    for dense in layout.dense:
        values[dense.name] = encoded.floats[:, dense.start : dense.start + dense.width].tolist()
    return values
