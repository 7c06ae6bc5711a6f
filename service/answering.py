"""Answers decoded requests: admission, body, light stage, heavy stage, answer, and whom that is told.

What the routes /rank and /rank/batch share. The light stage, from decoding to the survivors, runs in a thread for
ranking, or where ``rank_threads`` is 0 on the event loop itself: several processes then share a machine with no thread
handing work to another. The heavy stage has limits of its own (``service.heavy_runner``) and holds no thread here while
it is waited for.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope

from service.admission import Admission
from service.api import Problem, RankRequest, RankResponse
from service.body import read_body
from service.deadline import Deadline
from service.feedback import FeedbackLog
from service.follower import Follower
from service.logs import logging_request
from service.media import JSON, media_type
from service.problems import HttpProblem, problem_of, respond_to
from service.query_towers import DirectTowers
from service.ranker import Prepared, Underway, light_stage, prepare
from service.releases import Snapshot
from service.request_log import RequestLog, Trace
from service.settings import Settings
from service.shadow import Shadows
from service.telemetry import Telemetry
from service.tokens import authorization, require_token
from service.turns import Turns
from service.wire import decode_request
from service.workers import Workers

Args = TypeVarTuple("Args")
T = TypeVar("T")


class Begun(msgspec.Struct, frozen=True):
    """A request whose light stage is done, and the snapshot that ranks it."""

    snapshot: Snapshot
    request: RankRequest
    underway: Underway


class Asked(msgspec.Struct, frozen=True):
    """A request whose body is there, and the snapshot that is to rank it.

    ``start`` is ``time.monotonic()`` from which its deadline counts.
    """

    snapshot: Snapshot
    body: bytes | msgspec.Raw
    media: str
    trace: Trace
    start: float


class Answering:
    """Answers requests, whichever route brings them.

    ``admission`` counts the requests of all routes together.

    Args:
        follower: Holds the snapshot; each request takes it once.
        settings: Limits and policies.
        telemetry: Counts.
        workers: Threads that rank, and what runs the heavy stage.
        feedback: Takes up what was answered; None where nothing is logged.
        shadows: Takes it up to rank it by second releases.
    """

    def __init__(
        self,
        follower: Follower,
        settings: Settings,
        telemetry: Telemetry,
        workers: Workers,
        feedback: FeedbackLog | None,
        shadows: Shadows,
    ) -> None:
        self._follower, self._settings, self._telemetry = follower, settings, telemetry
        self._workers, self._feedback, self._shadows = workers, feedback, shadows
        self._log = RequestLog(settings)
        self._may_be_cold = settings.unknown_ads == "score"
        self.admission = Admission(settings)
        telemetry.watch_in_flight(lambda: self.admission.in_flight)
        self._turns = Turns(self.begin)

    @property
    def snapshot(self) -> Snapshot:
        """What serves now."""
        return self._follower.snapshot

    async def body(self, scope: Scope, receive: Receive) -> tuple[bytes, str]:
        """The body of a call, and its media type.

        Raises:
            HttpProblem: 401, 408, 413, 415, or 400 when the caller went away.
        """
        content_type, declared = None, None
        for name, value in scope["headers"]:  # the last of each name
            if name == b"content-type":
                content_type = value.decode("latin-1")
            elif name == b"content-length":
                declared = value.decode("latin-1")
        if self._settings.rank_token is not None:
            given = authorization(scope["headers"])
            require_token(given, self._settings.rank_token, setting="ADSIEVE_RANK_TOKEN")
        media = JSON if content_type == JSON else media_type(content_type)
        if media is None:
            detail = f"expected application/json or application/msgpack, got {content_type}"
            raise HttpProblem(415, "media-type", detail)
        settings = self._settings
        return await read_body(declared, receive, settings.max_body_bytes, settings.body_timeout_s), media

    async def in_rank_thread(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Run what computes where the light stage runs."""
        if self._workers.rank is None:
            return await self._turns.run(function, *args)
        return await asyncio.get_running_loop().run_in_executor(self._workers.rank, function, *args)

    async def begun(self, asked: Asked) -> Begun:
        """One request after its light stage; on the event loop, those that wait behind it share calls with it.

        Raises:
            AdsieveError: As of ``light_stage`` and ``decode_request``.
        """
        if self._workers.rank is not None:
            return await asyncio.get_running_loop().run_in_executor(self._workers.rank, self._begin, asked)
        most = 1
        for loaded in asked.snapshot.releases.values():
            if loaded.batches_queries:
                most = self._workers.towers.in_a_turn
        return await self._turns.ask(asked, most)

    def begin(self, group: Sequence[Asked]) -> list[Begun | Exception]:
        """Requests after their light stages, in this thread, or the errors that these ended with.

        All are encoded before the query towers run, so that they share calls of these; each is scored after.
        """
        if len(group) < 2:
            return [caught(self._begin, asked) for asked in group]
        prepared = [caught(self._prepare, asked) for asked in group]
        ready = [one for one in prepared if isinstance(one, Prepared)]
        embeddings = iter(self._embedded(ready, time.monotonic() - group[0].start))
        found: list[Begun | Exception] = []
        for asked, one in zip(group, prepared, strict=True):
            found.append(caught(_scored, asked, one, next(embeddings)) if isinstance(one, Prepared) else one)
        return found

    def _begin(self, asked: Asked) -> Begun:
        request, deadline = self._decoded(asked)
        with logging_request(request.request_id):
            underway = light_stage(
                request,
                asked.snapshot,
                self._settings,
                deadline,
                watch=asked.trace.watch,
                towers=self._workers.towers,
            )
        return Begun(asked.snapshot, request, underway)

    def _prepare(self, asked: Asked) -> Prepared:
        request, deadline = self._decoded(asked)
        with logging_request(request.request_id):
            return prepare(request, asked.snapshot, self._settings, deadline, watch=asked.trace.watch)

    def _decoded(self, asked: Asked) -> tuple[RankRequest, Deadline]:
        watch = asked.trace.watch
        began = time.perf_counter()
        try:
            request = decode_request(asked.body, asked.media)
        finally:
            watch.note("decode", began)
        asked.trace.request_id = request.request_id
        timeout_ms = self._settings.timeout_ms if request.timeout_ms is None else request.timeout_ms
        return request, Deadline.after_ms(timeout_ms, start=asked.start)

    def _embedded(self, ready: Sequence[Prepared], waited_s: float) -> list[list[np.ndarray] | Exception]:
        """By request; where a shared call fails, each has its own, so that an error is of those that it concerns."""
        towers, began = self._workers.towers, time.perf_counter()
        found: list[list[np.ndarray] | Exception] = []
        try:
            found.extend(towers.embed_all([(one.releases, one.inputs.queries) for one in ready], waited_s))
        except Exception:
            alone = DirectTowers()
            found = [caught(alone.embed, one.releases, one.inputs.queries, one.deadline) for one in ready]
        for one in ready:
            one.watch.note("query_tower", began)
        return found

    def start_heavy(self, begun: Begun) -> "list[Future[np.ndarray]]":
        """Let the heavy stage run; what to wait for."""
        with logging_request(begun.underway.inputs.request_id):
            return begun.underway.start_heavy(self._workers.heavy)

    async def finish(self, begun: Begun, calls: "Sequence[Future[np.ndarray]]") -> RankResponse:
        """The answer, once the heavy stage is done or late."""
        if calls:
            await _settled(calls, begun.underway.patience_s)
        with logging_request(begun.underway.inputs.request_id):
            outcome = begun.underway.finish()
        self._telemetry.observe(outcome, may_be_cold=self._may_be_cold)
        self._log.answered(outcome)
        if self._feedback is not None:
            self._feedback.offer(begun.request, outcome)
        if self._settings.shadow:
            self._shadows.offer(begun.snapshot, begun.request, outcome)
        return outcome.response

    def refuse(self, error: Exception, trace: Trace) -> Response:
        """The answer for an error that a call ended with; counts and logs it."""
        problem = self.problem(error, trace)
        return respond_to(error, retry_after_s=self._settings.retry_after_s, problem=problem)

    def refusal(self) -> Response | None:
        """What a call gets for which there is no room, counted and logged; None where there is room."""
        error = self.admission.refusal()
        if error is None:
            return None
        self.count(error.status)
        return self.refuse(error, Trace())

    def problem(self, error: Exception, trace: Trace) -> Problem:
        """What is told of an error that a request ended with; counts and logs it."""
        problem = problem_of(error)
        self._telemetry.problem(problem)
        self._log.failed(error, problem.status, trace)
        return problem

    def count(self, status: int) -> None:
        """Count the answer to a request."""
        self._telemetry.count(status)


def caught(function: Callable[[*Args], T], *args: *Args) -> T | Exception:
    """What a function returns, or the error that it raises."""
    try:
        return function(*args)
    except Exception as error:
        return error


def _scored(asked: Asked, prepared: Prepared, embeddings: list[np.ndarray] | Exception) -> Begun:
    if isinstance(embeddings, Exception):
        raise embeddings
    with logging_request(prepared.request.request_id):
        return Begun(asked.snapshot, prepared.request, prepared.scored(embeddings))


async def _settled(calls: "Sequence[Future[np.ndarray]]", patience_s: float | None) -> None:
    """Wait until all calls are done, or no longer than patience allows."""
    loop, open_calls, settled = asyncio.get_running_loop(), len(calls), asyncio.Event()

    def one_is_done() -> None:
        nonlocal open_calls
        open_calls -= 1
        if open_calls == 0:
            settled.set()

    for call in calls:
        call.add_done_callback(lambda _: loop.call_soon_threadsafe(one_is_done))
    with suppress(TimeoutError):
        await asyncio.wait_for(settled.wait(), patience_s)
