"""Rows of the feedback log: a ranked request as the log format has it, what was scored as it was scored.

An ``auto`` request becomes one logged request for each scenario that ranked some of its ads, named
``REQUEST_ID/SCENARIO``. Shapes: P logged ads of one request, T tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from contracts.records import STAGES
from contracts.rows import encode_pairs, encode_request, feature_columns, pair_columns
from indexing.id_texts import texts_at
from service.answer import Result
from service.api import RankRequest
from service.feedback_columns import TIME, LogColumns, ServedFeatures
from service.light import Scored
from service.releases import LoadedRelease
from service.request_inputs import EPOCH, MICROSECOND
from service.routing import AUTO
from service.wire import CandidateColumns

_STAGE_NAMES = pa.array(STAGES)
_LARGEST_BID = np.finfo(np.float32).max


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A request that was answered, with everything that the log needs; nothing of it is copied or changed.

    ``event_time_us`` is the moment that ages were taken against, microseconds since 1970 UTC.
    """

    request_id: str
    request: RankRequest
    event_time_us: int
    result: Result

    @property
    def num_rows(self) -> int:
        return self.result.num_ranked


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRequest:
    """One row of ``requests/`` and its P rows of ``candidates/``, ads in the order of the request.

    ``query`` and ``pair`` hold the raw columns that the request had; ``light`` and ``teacher`` logits by task, NaN for
    none; ``propensity`` is NaN where an ad was not drawn.
    """

    request_id: str
    event_time_us: int
    scenario: str
    release: str
    ads_as_of_us: int
    query: Mapping[str, pa.Array]
    ad_ids: pa.Array
    stage: np.ndarray
    bid: np.ndarray
    propensity: np.ndarray
    objective: pa.Array
    pair: Mapping[str, pa.Array]
    light: Mapping[str, np.ndarray]
    teacher: Mapping[str, np.ndarray]
    teacher_version: pa.Array
    columns: LogColumns


class RowReader:
    """Turns what was served into logged requests. ``num_cold`` counts ads without features, which are left out."""

    def __init__(self) -> None:
        self._features: dict[tuple[str, str | None], ServedFeatures] = {}
        self.num_cold = 0

    def read(self, served: Served) -> list[LoggedRequest]:
        """One for each scenario that ranked some of the ads.

        Raises:
            RequestError: A feature that no model has read yet breaks a rule.
        """
        parts = []
        for owner, part in enumerate(served.result.scored):
            known = np.flatnonzero(part.pool.rows >= 0)
            self.num_cold += len(part.pool.rows) - len(known)
            if len(known):
                features = self._features_of(part.release)
                if served.result.heavy is None:
                    _check_unread(served, part.release)
                parts.append(_logged(served, owner, known, features))
        return parts

    def columns_of(self, releases: Sequence[LoadedRelease]) -> list[LogColumns]:
        """What requests of these releases may fill; other releases are forgotten, with the encoders that they had."""
        found = {_versions(loaded): self._features_of(loaded) for loaded in releases}
        self._features = found
        return [features.columns for features in found.values()]

    def _features_of(self, loaded: LoadedRelease) -> ServedFeatures:
        versions = _versions(loaded)
        if versions not in self._features:
            self._features[versions] = ServedFeatures.of(loaded)
        return self._features[versions]


def _versions(loaded: LoadedRelease) -> tuple[str, str | None]:
    return loaded.versions.two_tower, loaded.versions.heavy


def _check_unread(served: Served, loaded: LoadedRelease) -> None:
    """Let the heavy ranker's encoders read what its training will, where no heavy stage did."""
    if loaded.heavy is None:
        return
    encoders, columns = loaded.heavy.encoders, served.result.inputs.columns
    encode_request(encoders.query_encoder, served.request.query, event_time_us=served.event_time_us)
    if encoders.pair_encoder is not None and columns is not None and columns.pair:
        encode_pairs(encoders.pair_encoder, columns.pair, len(columns.ids))


def _logged(served: Served, owner: int, known: np.ndarray, features: ServedFeatures) -> LoggedRequest:
    """The ads ``known`` [P], places in the pool, of one scenario."""
    request, part = served.request, served.result.scored[owner]
    loaded, pool = part.release, part.pool
    content = int(loaded.live.valid_from(pool.rows[known]).max())
    survived, propensity, teacher = _survivors(served.result, owner, known, len(pool.rows))
    query, _ = feature_columns(features.query, request.query)
    return LoggedRequest(
        request_id=f"{served.request_id}/{loaded.scenario}" if request.scenario == AUTO else served.request_id,
        event_time_us=served.event_time_us,
        scenario=loaded.scenario,
        release=loaded.release.release_id,
        ads_as_of_us=max((loaded.watermark - EPOCH) // MICROSECOND, content),
        query=query,
        ad_ids=_ad_ids(served.result, part, known),
        stage=np.where(survived, STAGES.index("candidate"), STAGES.index("eligible")),
        bid=np.minimum(pool.bids[known], _LARGEST_BID),
        propensity=propensity,
        objective=pa.array(loaded.objectives.names).take(pa.array(pool.objectives[known])),
        pair=_pair(served.result.inputs.columns, features, pool.positions[known]),
        light={task: part.logits[known, head] for head, task in enumerate(loaded.tasks)},
        teacher=teacher,
        teacher_version=_teacher_versions(loaded, teacher, len(known)),
        columns=features.columns,
    )


def _survivors(
    result: Result, owner: int, known: np.ndarray, num_ads: int
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Which ads survived, bool [P]; how likely a drawn one was to be drawn [P], NaN for the others; and the heavy
    ranker's logits by task [P], NaN where it did not rank."""
    members = np.flatnonzero(result.final.owners == owner)
    places = result.final.places[members]
    survived = np.zeros(num_ads, bool)
    survived[places] = True
    propensity = np.full(num_ads, np.nan)
    if result.final.propensities is not None:
        propensity[places] = result.final.propensities[members]
    teacher = {}
    for task, logits in (result.heavy.logits if result.heavy is not None else {}).items():
        of_pool = np.full(num_ads, np.nan)
        of_pool[places] = logits[members]
        teacher[task] = of_pool[known]
    return survived[known], propensity[known], teacher


def _teacher_versions(loaded: LoadedRelease, teacher: Mapping[str, np.ndarray], num_ads: int) -> pa.Array:
    """The heavy ranker's version for ads that have one of its logits."""
    if loaded.heavy is None or not teacher:
        return pa.nulls(num_ads, pa.string())
    scored = np.isfinite(np.column_stack([*teacher.values()])).any(axis=1)
    return pa.array([loaded.heavy.version]).take(pa.array(np.zeros(num_ads, np.int64), mask=~scored))


def _ad_ids(result: Result, part: Scored, known: np.ndarray) -> pa.Array:
    if result.ids is None:
        return pa.array(part.release.live.ids(part.pool.rows[known]), pa.string())
    return pa.array(texts_at(result.ids, part.pool.positions[known]), pa.string())


def _pair(columns: CandidateColumns | None, features: ServedFeatures, positions: np.ndarray) -> dict[str, pa.Array]:
    if columns is None or features.pair_encoder is None:
        return {}
    arrays = pair_columns(features.pair_encoder, columns.pair, len(columns.ids))
    return {name: array.take(pa.array(positions)) for name, array in arrays.items()}


def tables(requests: Sequence[LoggedRequest], columns: LogColumns) -> tuple[pa.Table, pa.Table]:
    """Rows of ``requests/`` and of ``candidates/``, the latter in the order of the former.

    Args:
        requests: At least one.
        columns: Of the file; they include those of each request.
    """
    return _request_rows(requests, columns), _candidate_rows(requests, columns)


def _request_rows(requests: Sequence[LoggedRequest], columns: LogColumns) -> pa.Table:
    count = len(requests)
    found = {
        "request_id": pa.array([one.request_id for one in requests], pa.string()),
        "event_time": pa.array([one.event_time_us for one in requests], TIME),
        "scenario": pa.array([one.scenario for one in requests], pa.string()),
        "labels_as_of": pa.nulls(count, TIME),
        "release": pa.array([one.release for one in requests], pa.string()),
        "ads_as_of": pa.array([one.ads_as_of_us for one in requests], TIME),
    }
    for name, type_ in columns.query.items():
        absent = pa.nulls(1, type_)
        found[name] = pa.concat_arrays([_typed(one.query.get(name, absent), type_) for one in requests])
    return pa.table([found[name] for name in columns.requests.names], schema=columns.requests)


def _candidate_rows(requests: Sequence[LoggedRequest], columns: LogColumns) -> pa.Table:
    counts = [len(one.stage) for one in requests]
    owner = pa.array(np.repeat(np.arange(len(requests)), counts))
    found = {
        "request_id": pa.array([one.request_id for one in requests], pa.string()).take(owner),
        "ad_id": pa.concat_arrays([one.ad_ids for one in requests]),
        "stage": _STAGE_NAMES.take(pa.array(np.concatenate([one.stage for one in requests]))),
        "bid": _numbers([one.bid for one in requests]),
        "objective": pa.concat_arrays([one.objective for one in requests]),
        "explore_propensity": _numbers([one.propensity for one in requests]),
        "teacher_version": pa.concat_arrays([one.teacher_version for one in requests]),
    }
    for name, type_ in columns.pair.items():
        found[name] = pa.concat_arrays(
            [
                _typed(one.pair.get(name, pa.nulls(count, type_)), type_)
                for one, count in zip(requests, counts, strict=True)
            ]
        )
    for task in columns.tasks:
        found[f"label_{task}"] = pa.nulls(len(owner), pa.int8())
        found[f"light_{task}"] = _numbers([_or_nan(one.light, task, len(one.stage)) for one in requests])
        found[f"teacher_{task}"] = _numbers([_or_nan(one.teacher, task, len(one.stage)) for one in requests])
    return pa.table([found[name] for name in columns.candidates.names], schema=columns.candidates)


def _typed(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values, or nulls where they are of another type: the feature has two kinds in models of one service."""
    return array if array.type == type_ else pa.nulls(len(array), type_)


def _or_nan(columns: Mapping[str, np.ndarray], task: str, count: int) -> np.ndarray:
    return columns[task] if task in columns else np.full(count, np.nan)


def _numbers(parts: Sequence[np.ndarray]) -> pa.Array:
    """float32, null for NaN and for what is infinite."""
    values = np.concatenate(parts).astype(np.float32)
    return pa.array(values, pa.float32(), mask=~np.isfinite(values))
