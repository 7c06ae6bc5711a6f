"""POST /heavy: encoded rows of one request's survivors, one answer with their logits."""

import asyncio
import time
from math import inf

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from contracts.errors import MismatchError, RequestError
from service.batching import QueueFullError
from service.body import read_body
from service.deadline import Deadline, DeadlineError
from service.heavy import HeavyCall
from service.heavy_host import HeavyHost
from service.heavy_wire import REQUEST_ID_HEADER, call_of, decode_call, encode_logits, request_id_of
from service.media import MSGPACK
from service.problems import HttpProblem, problem_of, respond_to
from service.request_log import RequestLog, Trace
from service.settings import Settings
from service.telemetry import Telemetry
from service.tokens import authorization, require_token
from service.workers import Workers


class HeavyRoute:
    """Answers /heavy, as ``RankRoute`` answers /rank: at most ``max_in_flight`` calls are read, waiting or run.

    Args:
        host: Holds the heavy rankers.
        workers: Run them, calls of several requests together.
        settings: Limits and token.
        telemetry: Counts.
    """

    def __init__(self, host: HeavyHost, workers: Workers, settings: Settings, telemetry: Telemetry) -> None:
        self._host, self._workers, self._settings, self._telemetry = host, workers, settings, telemetry
        self._log = RequestLog(settings)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, to logits or a problem."""
        trace, start = Trace(), time.monotonic()
        self._in_flight += 1
        self._telemetry.in_flight.set(self._in_flight)
        try:
            if self._in_flight > self._settings.max_in_flight:
                raise HttpProblem(503, "overloaded", f"calls in flight: {self._in_flight - 1}, try again later")
            response = await self._answered(scope, receive, trace, start)
        except Exception as error:
            problem = problem_of(error)
            response = respond_to(error, retry_after_s=self._settings.retry_after_s, problem=problem)
            self._telemetry.problem(problem)
            self._log.failed(error, problem.status, trace)
        finally:
            self._in_flight -= 1
            self._telemetry.in_flight.set(self._in_flight)
        self._telemetry.count(response.status_code)
        await response(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, trace: Trace, start: float) -> Response:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        trace.request_id = request_id_of(headers.get(REQUEST_ID_HEADER))
        if self._settings.heavy_token is not None:
            given = authorization(scope["headers"])
            require_token(given, self._settings.heavy_token, setting="ADSIEVE_HEAVY_TOKEN")
        settings = self._settings
        body = await read_body(
            headers.get(b"content-length"), receive, settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        with trace.watch.stage("decode"):
            request = decode_call(body)
        heavy = self._host.heavies.get(request.version)
        if heavy is None:
            raise HttpProblem(503, "not-serving", f"the heavy ranker {request.version!r} is not run here")
        call = call_of(request, heavy, max_survivors=self._settings.max_survivors)
        deadline = Deadline.after_ms(request.timeout_ms, start=start)
        with trace.watch.stage("heavy"):
            logits = await self._run(call, deadline)
        response = Response(encode_logits(call, logits), media_type=MSGPACK)
        self._telemetry.call(trace.watch.timing())
        self._log.called(trace, len(call.ads))
        return response

    async def _run(self, call: HeavyCall, deadline: Deadline) -> np.ndarray:
        try:
            future = asyncio.wrap_future(self._workers.heavy.submit(call, deadline))
            return await asyncio.wait_for(future, None if deadline.at == inf else max(deadline.remaining_s(), 0))
        except TimeoutError:
            raise DeadlineError("the deadline passed in the heavy stage") from None
        except QueueFullError as error:
            raise HttpProblem(503, "overloaded", str(error)) from None
        except MismatchError as error:  # an id beyond its table
            raise RequestError(str(error), field="ids") from None
