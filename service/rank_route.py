"""POST /rank: admission, body, ranking off the event loop, answer."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import AdsieveError
from service.body import read_body
from service.deadline import Deadline, DeadlineError
from service.feedback import FeedbackLog
from service.follower import Follower
from service.openapi import RANK_ANSWERS, RANK_BODY
from service.problems import HttpProblem, respond_to
from service.ranker import Stopwatch, rank
from service.settings import Settings
from service.telemetry import Telemetry
from service.wire import decode_request, encode_response, media_type
from service.workers import Workers


def rank_router(
    follower: Follower, settings: Settings, telemetry: Telemetry, workers: Workers, feedback: FeedbackLog | None
) -> APIRouter:
    """The route as a router of its own; the arguments are those of ``RankRoute``."""
    router = APIRouter()
    route = RankRoute(follower, settings, telemetry, workers, feedback)
    router.add_api_route(
        "/rank",
        route.answer,
        methods=["POST"],
        summary="Rank candidate ads, or retrieve and rank them",
        response_class=Response,
        responses=RANK_ANSWERS,
        openapi_extra=RANK_BODY,
    )
    return router


class RankRoute:
    """Answers /rank.

    At most ``max_in_flight`` requests are read, waiting or ranked; the next one gets 503 before its body is read.
    Decoding, ranking and encoding run in a worker thread, so that the event loop only moves bytes.

    Args:
        follower: Holds the snapshot; each request takes it once.
        settings: Limits and policies.
        telemetry: Counts.
        workers: Their number is how many requests are ranked at the same time.
        feedback: Takes up what was answered; None where nothing is logged.
    """

    def __init__(
        self,
        follower: Follower,
        settings: Settings,
        telemetry: Telemetry,
        workers: Workers,
        feedback: FeedbackLog | None,
    ) -> None:
        self._follower, self._settings, self._telemetry = follower, settings, telemetry
        self._workers, self._feedback = workers, feedback
        self._in_flight = 0

    async def answer(self, request: Request) -> Response:
        """One request, to an answer or a problem."""
        watch, start = Stopwatch(), time.monotonic()
        status = 500
        try:
            with self._admitted():
                response = await self._ranked(request, watch, start)
            status = response.status_code
        except (AdsieveError, DeadlineError, HttpProblem) as error:
            response = respond_to(error, retry_after_s=self._settings.retry_after_s)
            status = response.status_code
        finally:
            self._telemetry.requests.labels(str(status)).inc()
        return response

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

    async def _ranked(self, request: Request, watch: Stopwatch, start: float) -> Response:
        content_type = request.headers.get("content-type")
        media = media_type(content_type)
        if media is None:
            detail = f"expected application/json or application/msgpack, got {content_type}"
            raise HttpProblem(415, "media-type", detail)
        body = await read_body(request, self._settings.max_body_bytes)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._workers.rank, self._rank, body, media, watch, start)
        return Response(answer, media_type=media)

    def _rank(self, body: bytes, media: str, watch: Stopwatch, start: float) -> bytes:
        snapshot = self._follower.snapshot
        with watch.stage("decode"):
            request = decode_request(body, media)
        timeout_ms = self._settings.timeout_ms if request.timeout_ms is None else request.timeout_ms
        deadline = Deadline.after_ms(timeout_ms, start=start)
        outcome = rank(request, snapshot, self._settings, deadline, watch=watch, executor=self._workers.heavy)
        self._telemetry.observe(outcome)
        answer = encode_response(outcome.response, media)
        if self._feedback is not None:
            self._feedback.offer(request, outcome)
        return answer
