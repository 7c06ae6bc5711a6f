"""Ranks one request against one snapshot, in three steps: before, in and after the heavy stage.

route -> features -> query tower -> candidates or retrieval, light scores -> survivors -> heavy scores -> answer

The first and the last step run where they are called, the heavy stage wherever a ``HeavyRunner`` has it run: HTTP waits
for it without holding a thread, ``adsieve rank`` and warm-up call :func:`rank`.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from math import inf

import msgspec
import numpy as np

from service.ages import age_warnings
from service.answer import Result, build_response
from service.api import Degraded, RankRequest, RankResponse
from service.candidates import resolve, retrieve
from service.deadline import Deadline, DeadlineError
from service.experiments import split_users
from service.features import FeatureNotes
from service.heavy import HeavyCall, HeavyScores, heavy_calls, heavy_scores
from service.heavy_runner import DirectRunner, HeavyRunner, results_of, start_calls, unavailable
from service.light import Ranking, Scored, score_pool
from service.pools import Resolved
from service.query_towers import DirectTowers, QueryTowers
from service.releases import LoadedRelease, Snapshot
from service.request_inputs import RequestInputs, request_inputs
from service.routing import route
from service.settings import Settings
from service.stopwatch import Stopwatch
from service.survivors import choose_survivors


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request, and what metrics and the feedback log read beside it.

    ``event_time_us`` is the moment that ages were taken against, microseconds since 1970 UTC.
    """

    response: RankResponse
    result: Result
    event_time_us: int
    num_candidates: int
    notes: FeatureNotes


def rank(
    request: RankRequest,
    snapshot: Snapshot,
    settings: Settings,
    deadline: Deadline,
    *,
    watch: Stopwatch | None = None,
    runner: HeavyRunner | None = None,
) -> Outcome:
    """Rank one request; arguments and errors are those of :func:`light_stage`.

    Args:
        runner: Runs the heavy stage, and lets an answer leave before a late heavy ranker has finished; in this thread
            unless given.
    """
    underway = light_stage(request, snapshot, settings, deadline, watch=watch)
    calls = underway.start_heavy(runner or DirectRunner())
    wait(calls, timeout=underway.patience_s)
    return underway.finish()


def light_stage(
    request: RankRequest,
    snapshot: Snapshot,
    settings: Settings,
    deadline: Deadline,
    *,
    watch: Stopwatch | None = None,
    towers: QueryTowers | None = None,
) -> "Underway":
    """Everything up to the survivors.

    Args:
        request: Decoded, of the right types.
        snapshot: What serves; taken once.
        settings: Limits and policies.
        deadline: Checked before and after each stage.
        watch: Started when the request arrived; now unless given.
        towers: Runs the query towers; in this thread unless given.

    Raises:
        RequestError: A field has a wrong value, or a policy refuses the request.
        DeadlineError: The deadline passed before the light stage was done.
        QueueFullError: Too many requests wait for the query tower.
        NotServingError: The snapshot is empty, or an index is old and the policy refuses that.
    """
    prepared = prepare(request, snapshot, settings, deadline, watch=watch)
    with prepared.watch.stage("query_tower"):
        embeddings = (towers or DirectTowers()).embed(prepared.releases, prepared.inputs.queries, deadline)
    return prepared.scored(embeddings)


def prepare(
    request: RankRequest, snapshot: Snapshot, settings: Settings, deadline: Deadline, *, watch: Stopwatch | None = None
) -> "Prepared":
    """What comes before the query towers; arguments and errors are those of :func:`light_stage`."""
    watch = watch or Stopwatch()
    snapshot, arm = split_users(snapshot, request, settings.ab)
    releases, others = route(request.scenario, snapshot)
    old = age_warnings(releases, settings)
    _check_deadline(deadline, "the query tower")
    with watch.stage("query_tower"):
        inputs = request_inputs(request, releases, settings)
    return Prepared(
        request=request,
        releases=releases,
        others=others,
        old=old,
        arm=arm,
        inputs=inputs,
        settings=settings,
        deadline=deadline,
        watch=watch,
    )


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose rows for the query towers of ``releases`` are encoded.

    ``others`` are releases of scenarios that it does not ask for, ``old`` the warnings of old indexes.
    """

    request: RankRequest
    releases: Sequence[LoadedRelease]
    others: Sequence[LoadedRelease]
    old: Sequence[str]
    arm: str | None
    inputs: RequestInputs
    settings: Settings
    deadline: Deadline
    watch: Stopwatch

    def scored(self, embeddings: Sequence[np.ndarray]) -> "Underway":
        """Everything up to the survivors.

        Args:
            embeddings: [H, D+2] by the query tower of each release.

        Raises:
            DeadlineError: The deadline passed meanwhile.
        """
        request, inputs, settings = self.request, self.inputs, self.settings
        _check_deadline(self.deadline, "the light stage")
        with self.watch.stage("light"):
            resolved = _resolve(request, inputs, self.releases, self.others, embeddings, settings)
            pools = zip(self.releases, resolved.pools, embeddings, strict=True)
            few = None if _needs_all_scores(request, self.releases, settings) else inputs.num_survivors
            scored = [score_pool(loaded, pool, embedding, survivors=few) for loaded, pool, embedding in pools]
            ranking = choose_survivors(
                scored,
                inputs.num_survivors,
                quotas=settings.survivor_quotas,
                explore_share=settings.explore_share,
                request_id=inputs.request_id,
            )
        return Underway(
            request=request,
            old=self.old,
            arm=self.arm,
            inputs=inputs,
            resolved=resolved,
            scored=scored,
            ranking=ranking,
            settings=settings,
            deadline=self.deadline,
            watch=self.watch,
        )


class Underway(msgspec.Struct, kw_only=True):
    """A request between its light stage and its answer.

    ``ranking`` are the survivors in light order, ``old`` the warnings of old indexes.
    """

    request: RankRequest
    old: Sequence[str]
    arm: str | None
    inputs: RequestInputs
    resolved: Resolved
    scored: Sequence[Scored]
    ranking: Ranking
    settings: Settings
    deadline: Deadline
    watch: Stopwatch
    _calls: Sequence[HeavyCall] = ()
    _futures: "list[Future[np.ndarray]]" = []
    _degraded: Degraded | None = None
    _heavy_began: float = 0.0

    @property
    def patience_s(self) -> float | None:
        """How long the heavy stage may be waited for; None is for ever."""
        return None if self.deadline.at == inf else max(self.deadline.remaining_s(), 0.0)

    def start_heavy(self, runner: HeavyRunner) -> "list[Future[np.ndarray]]":
        """Let the heavy stage run; what to wait for, nothing where it is not asked or cannot be."""
        self._heavy_began = time.perf_counter()
        if self.request.stage == "light" or len(self.ranking) == 0:
            return []
        try:
            self._calls = heavy_calls(self.ranking, self.scored, self.inputs.heavy)
            self._futures = start_calls(runner, self._calls, self.deadline)
        except Exception as error:
            self._degraded = _degraded(error)
        return self._futures

    def finish(self) -> Outcome:
        """The answer, in light order where the heavy stage is late or failed."""
        ranking, heavy = self.ranking, None
        if self._futures:
            try:
                results = results_of(self._futures, self.deadline)
                heavy = heavy_scores(ranking, self.scored, self._calls, results)
                order = np.argsort(-heavy.utilities, kind="stable")
                ranking, heavy = ranking.take(order, heavy.utilities[order]), heavy.take(order)
            except Exception as error:
                ranking, heavy, self._degraded = self.ranking, None, _degraded(error)
        self.watch.note("heavy", self._heavy_began)
        return self._outcome(ranking, heavy)

    def _outcome(self, final: Ranking, heavy: HeavyScores | None) -> Outcome:
        inputs, notes = self.inputs, self.inputs.notes
        result = Result(
            inputs=inputs,
            ids=inputs.columns.ids if inputs.columns else None,
            resolved=self.resolved,
            scored=self.scored,
            final=final,
            heavy=heavy,
            degraded=self._degraded,
            notes=notes,
            arm=self.arm,
        )
        warnings = [*notes.warnings(self.settings), *self.old]
        response = build_response(self.request, inputs.request_id, result, warnings, self.watch.timing)
        return Outcome(
            response=response,
            result=result,
            event_time_us=inputs.event_time_us,
            num_candidates=result.num_candidates,
            notes=notes,
        )


def _degraded(error: Exception) -> Degraded:
    why = unavailable(error)
    return Degraded(stage="heavy", reason=why.reason, detail=why.detail)


def _check_deadline(deadline: Deadline, stage: str) -> None:
    if deadline.has_passed:
        raise DeadlineError(f"the deadline passed before {stage}")


def _needs_all_scores(request: RankRequest, releases: Sequence[LoadedRelease], settings: Settings) -> bool:
    """Whether anybody asks for the scores of ads that do not survive: several pools, a draw, ``explain``, a log."""
    return len(releases) > 1 or settings.explore_share > 0 or request.explain or settings.feedback_dir is not None


def _resolve(
    request: RankRequest,
    inputs: RequestInputs,
    releases: Sequence[LoadedRelease],
    others: Sequence[LoadedRelease],
    embeddings: Sequence[np.ndarray],
    settings: Settings,
) -> Resolved:
    """Pools from the candidates, or from the index where there are none."""
    advertisers = request.filters.exclude_advertisers
    if inputs.columns is not None:
        return resolve(inputs.columns, releases, others, advertisers, settings)
    return retrieve(releases, embeddings, inputs.num_survivors, advertisers, settings)
