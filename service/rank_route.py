"""POST /rank: admission, body, ranking, answer; a raw ASGI callable, as a framework's layers cost as much as ranking.

The light stage, from decoding to the survivors, runs in a thread for ranking, or where ``rank_threads`` is 0 on the
event loop itself: several processes then share a machine with no thread handing work to another. The heavy stage has
limits of its own (``service.heavy_runner``) and holds no thread here while it is waited for.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api import RankRequest
from service.body import read_body
from service.deadline import Deadline
from service.feedback import FeedbackLog
from service.follower import Follower
from service.media import media_type
from service.openapi import RANK_ANSWERS, RANK_BODY
from service.problems import HttpProblem, respond_to
from service.ranker import Stopwatch, Underway, light_stage
from service.releases import Snapshot
from service.settings import Settings
from service.shadow import Shadows
from service.telemetry import Telemetry
from service.wire import decode_request, encode_response
from service.workers import Workers

log = logging.getLogger(__name__)

PATH = "/rank"


class RankRoute:
    """Answers /rank.

    At most ``max_in_flight`` requests are read, waiting or ranked; the next one gets 503 before its body is read.

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
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, to an answer or a problem."""
        watch, start = Stopwatch(), time.monotonic()
        try:
            with self._admitted():
                response = await self._ranked(scope, receive, watch, start)
        except Exception as error:
            response = respond_to(error, retry_after_s=self._settings.retry_after_s)
            if response.status_code == 500:
                log.exception("a request to %s failed", PATH)
        self._telemetry.requests.labels(str(response.status_code)).inc()
        await response(scope, receive, send)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._in_flight >= self._settings.max_in_flight:
            raise HttpProblem(503, "overloaded", f"{self._in_flight} requests are in flight, try again later")
        self._in_flight += 1
        self._telemetry.in_flight.set(self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= 1
            self._telemetry.in_flight.set(self._in_flight)

    async def _ranked(self, scope: Scope, receive: Receive, watch: Stopwatch, start: float) -> Response:
        headers = _headers(scope)
        content_type = headers.get(b"content-type")
        media = media_type(content_type)
        if media is None:
            detail = f"expected application/json or application/msgpack, got {content_type}"
            raise HttpProblem(415, "media-type", detail)
        body = await read_body(headers.get(b"content-length"), receive, self._settings.max_body_bytes)
        pool = self._workers.rank
        snapshot = self._follower.snapshot
        if pool is None:
            request, underway = self._light(snapshot, body, media, watch, start)
        else:
            loop = asyncio.get_running_loop()
            request, underway = await loop.run_in_executor(pool, self._light, snapshot, body, media, watch, start)
        await _settled(underway, self._workers)
        outcome = underway.finish()
        self._telemetry.observe(outcome)
        answer = encode_response(outcome.response, media)
        if self._feedback is not None:
            self._feedback.offer(request, outcome)
        self._shadows.offer(snapshot, request, outcome)
        return Response(answer, media_type=media)

    def _light(
        self, snapshot: Snapshot, body: bytes, media: str, watch: Stopwatch, start: float
    ) -> tuple[RankRequest, Underway]:
        with watch.stage("decode"):
            request = decode_request(body, media)
        timeout_ms = self._settings.timeout_ms if request.timeout_ms is None else request.timeout_ms
        deadline = Deadline.after_ms(timeout_ms, start=start)
        return request, light_stage(request, snapshot, self._settings, deadline, watch=watch)


async def _settled(underway: Underway, workers: Workers) -> None:
    """Wait until the heavy stage is done or late."""
    calls = underway.start_heavy(workers.heavy)
    if not calls:
        return
    loop, open_calls, settled = asyncio.get_running_loop(), len(calls), asyncio.Event()

    def one_is_done() -> None:
        nonlocal open_calls
        open_calls -= 1
        if open_calls == 0:
            settled.set()

    for call in calls:
        call.add_done_callback(lambda _: loop.call_soon_threadsafe(one_is_done))
    with suppress(TimeoutError):
        await asyncio.wait_for(settled.wait(), underway.patience_s)


def _headers(scope: Scope) -> dict[bytes, str]:
    """The last value of each header, by its name in lower case, as ASGI has it."""
    return {name: value.decode("latin-1") for name, value in scope["headers"]}


def rank_router(route: RankRoute) -> APIRouter:
    """The route as one of FastAPI's, for the OpenAPI document, and for paths and methods that are not plainly /rank."""
    router = APIRouter()

    async def rank(request: Request) -> Response:
        return _Delegated(route)

    router.add_api_route(
        PATH,
        rank,
        methods=["POST"],
        summary="Rank candidate ads, or retrieve and rank them",
        response_class=Response,
        responses=RANK_ANSWERS,
        openapi_extra=RANK_BODY,
    )
    return router


class _Delegated(Response):
    """A response that an ASGI callable makes."""

    def __init__(self, route: RankRoute) -> None:
        super().__init__()
        self._route = route

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self._route(scope, receive, send)
