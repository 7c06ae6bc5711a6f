"""Ranks one request against one snapshot: the same function behind HTTP and behind ``adsieve rank``.

route -> features -> query tower -> candidates or retrieval, light scores -> survivors -> heavy scores -> answer
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from contracts.encoding import Encoded
from contracts.errors import RequestError
from contracts.rows import encode_pairs
from service.answer import Result, build_response
from service.api import Degraded, RankRequest, RankResponse, Timing
from service.candidates import Resolved, resolve, retrieve
from service.deadline import Deadline, DeadlineError
from service.features import FeatureNotes, QueryEncoding, check_lengths, note_unknown
from service.heavy import HeavyInput, HeavyScores, HeavyUnavailableError, rank_heavy
from service.light import Ranking, Scored, score_pool, survivors
from service.releases import LoadedHeavy, LoadedRelease, Snapshot
from service.routing import route
from service.settings import Settings
from service.wire import CandidateColumns, candidate_columns

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answer to a request, and what metrics and the feedback log read beside it.

    ``event_time_us`` is the moment that ages were taken against, microseconds since 1970 UTC.
    """

    response: RankResponse
    result: Result
    event_time_us: int
    num_candidates: int
    notes: FeatureNotes


@dataclass
class Stopwatch:
    """Milliseconds by stage. ``start`` is ``time.perf_counter()`` when the request arrived; decoding came first."""

    start: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = 1000 * (time.perf_counter() - begin)

    def timing(self) -> Timing:
        spent = {name: self.stages.get(name, 0.0) for name in ("decode", "query_tower", "light", "heavy")}
        return Timing(**spent, total=1000 * (time.perf_counter() - self.start))


def rank(
    request: RankRequest,
    snapshot: Snapshot,
    settings: Settings,
    deadline: Deadline,
    *,
    watch: Stopwatch | None = None,
    executor: Executor | None = None,
) -> Outcome:
    """Rank one request.

    Args:
        request: Decoded, of the right types.
        snapshot: What serves; taken once.
        settings: Limits and policies.
        deadline: Checked before and after each stage.
        watch: Started when the request arrived; now unless given.
        executor: Lets an answer leave before a late heavy ranker has finished.

    Raises:
        RequestError: A field has a wrong value, or a policy refuses the request.
        DeadlineError: The deadline passed before the light stage was done.
        NotServingError: The snapshot is empty.
    """
    watch = watch or Stopwatch()
    releases, others = route(request.scenario, snapshot)
    columns = _columns(request, settings)
    num_survivors = _num_survivors(request, settings)
    event_time_us = ((request.event_time or datetime.now(UTC)) - EPOCH) // MICROSECOND
    _check_deadline(deadline, "the query tower")
    with watch.stage("query_tower"):
        notes = FeatureNotes(note_unknown(request.query, columns.pair if columns else {}, releases, settings))
        queries, inputs = _encode(request, columns, releases, event_time_us, notes, settings)
        embeddings = [loaded.tower.embed_query(query)[0] for loaded, query in zip(releases, queries, strict=True)]
    _check_deadline(deadline, "the light stage")
    with watch.stage("light"):
        resolved = _resolve(request, columns, releases, others, embeddings, num_survivors, settings)
        pools = zip(releases, resolved.pools, embeddings, strict=True)
        scored = [score_pool(loaded, pool, embedding) for loaded, pool, embedding in pools]
        ranking = survivors(scored, num_survivors)
    with watch.stage("heavy"):
        final, heavy, degraded = _heavy(request, ranking, scored, inputs, deadline, executor)
    result = Result(
        ids=columns.ids if columns else None,
        resolved=resolved,
        scored=scored,
        final=final,
        heavy=heavy,
        degraded=degraded,
        notes=notes,
    )
    warnings = [*notes.warnings(settings), *_age_warnings(releases, settings)]
    response = build_response(request, result, warnings, watch.timing)
    return Outcome(
        response=response,
        result=result,
        event_time_us=event_time_us,
        num_candidates=result.num_candidates,
        notes=notes,
    )


def _age_warnings(releases: Sequence[LoadedRelease], settings: Settings) -> list[str]:
    """One for each index whose catalogue is older than the settings allow."""
    if settings.max_index_age_h is None:
        return []
    now, limit = datetime.now(UTC), timedelta(hours=settings.max_index_age_h)
    return [
        f"the index of {loaded.scenario} is of {loaded.watermark.isoformat()}, "
        f"older than {settings.max_index_age_h:g} hours (max_index_age_h)"
        for loaded in releases
        if now - loaded.watermark > limit
    ]


def _columns(request: RankRequest, settings: Settings) -> CandidateColumns | None:
    if request.candidates is None:
        return None
    return candidate_columns(request.candidates, max_candidates=settings.max_candidates)


def _num_survivors(request: RankRequest, settings: Settings) -> int:
    survivors_wanted = request.survivors or settings.survivors
    if survivors_wanted > settings.max_survivors:
        raise RequestError(f"at most {settings.max_survivors:,}, got {survivors_wanted:,}", field="survivors")
    return survivors_wanted


def _check_deadline(deadline: Deadline, stage: str) -> None:
    if deadline.has_passed:
        raise DeadlineError(f"the deadline passed before {stage}")


def _encode(
    request: RankRequest,
    columns: CandidateColumns | None,
    releases: Sequence[LoadedRelease],
    event_time_us: int,
    notes: FeatureNotes,
    settings: Settings,
) -> tuple[list[Encoded], dict[str, HeavyInput]]:
    """The query for each tower, and the inputs of each heavy ranker by version; all bad values are found here."""
    check_lengths(request.query, settings.max_list_length)
    encoding = QueryEncoding(query=request.query, event_time_us=event_time_us, notes=notes, settings=settings)
    queries = [encoding.encode(loaded.tower.query_rows, loaded.release.two_tower) for loaded in releases]
    heavies = {loaded.heavy.version: loaded.heavy for loaded in releases if loaded.heavy is not None}
    if request.stage == "light":
        return queries, {}
    return queries, {version: _heavy_input(heavy, encoding, columns) for version, heavy in heavies.items()}


def _heavy_input(heavy: LoadedHeavy, encoding: QueryEncoding, columns: CandidateColumns | None) -> HeavyInput:
    serving, pair = heavy.serving, None
    if columns is not None and columns.pair and serving.pair_encoder is not None:
        pair = encode_pairs(serving.pair_encoder, columns.pair, len(columns.ids)).encoded
    return HeavyInput(heavy=heavy, query=encoding.encode(serving.query_rows, heavy.version), pair=pair)


def _resolve(
    request: RankRequest,
    columns: CandidateColumns | None,
    releases: Sequence[LoadedRelease],
    others: Sequence[LoadedRelease],
    embeddings: Sequence[np.ndarray],
    num_survivors: int,
    settings: Settings,
) -> Resolved:
    """Pools from the candidates, or from the index where there are none."""
    advertisers = request.filters.exclude_advertisers
    if columns is not None:
        return resolve(columns, releases, others, advertisers, settings)
    return retrieve(releases, embeddings, num_survivors, advertisers, settings)


def _heavy(
    request: RankRequest,
    ranking: Ranking,
    scored: Sequence[Scored],
    inputs: dict[str, HeavyInput],
    deadline: Deadline,
    executor: Executor | None,
) -> tuple[Ranking, HeavyScores | None, Degraded | None]:
    """Survivors in final order with their heavy scores, or in light order with the reason where it has one."""
    if request.stage == "light" or len(ranking) == 0:
        return ranking, None, None
    try:
        scores = rank_heavy(ranking, scored, inputs, deadline, executor)
    except HeavyUnavailableError as error:
        return ranking, None, Degraded(stage="heavy", reason=error.reason, detail=error.detail)
    order = np.argsort(-scores.utilities, kind="stable")
    return ranking.take(order, scores.utilities[order]), scores.take(order), None
