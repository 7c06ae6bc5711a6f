"""POST /rank/batch: several requests in one body, so that a caller with many pays for one call.

Light stages run in one thread for ranking, and share calls of the query towers where it pays. Heavy calls of all are
begun before any is waited for, so that the heavy ranker takes them together; each request is then finished when it is
done or its own deadline has passed.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from contracts.errors import RequestError
from service.answering import Answering, Asked, Begun
from service.api import BatchAnswer, BatchResponse
from service.request_log import Trace
from service.stopwatch import Stopwatch
from service.wire import encode_response, split_batch

PATH = "/rank/batch"


@dataclass(frozen=True)
class _Part:
    """One request of a batch after its light stage, or the error that this ended with."""

    trace: Trace
    begun: Begun | Exception
    calls: "Sequence[Future[np.ndarray]]" = ()


class BatchRoute:
    """Answers /rank/batch. A batch counts as so many requests in flight; where not all of them fit in, it gets 503.

    Args:
        answering: Answers each request.
        max_requests: Most requests of a batch.
    """

    def __init__(self, answering: Answering, max_requests: int) -> None:
        self._answering, self._max_requests = answering, max_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One batch, to its answers or a problem."""
        trace = Trace()
        try:
            with self._answering.admission.admitted():  # while it is read; the others join once they are counted
                response = await self._answered(scope, receive)
        except Exception as error:
            response = self._answering.refuse(error, trace)
            self._answering.count(response.status_code)
        await response(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive) -> Response:
        answering = self._answering
        body, media = await answering.body(scope, receive)
        watch, start = Stopwatch(), time.monotonic()
        requests = await answering.in_rank_thread(split_batch, body, media)
        if len(requests) > self._max_requests:
            raise RequestError(f"at most {self._max_requests:,}, got {len(requests):,}", field="requests")
        admission = answering.admission
        with admission.admitted(max(len(requests) - 1, 0)), admission.in_line(len(requests)):
            parts = await answering.in_rank_thread(self._begin, requests, media, watch.start, start)
            answers = await asyncio.gather(*map(self._finish, parts))
        return Response(encode_response(BatchResponse(answers=answers), media), media_type=media)

    def _begin(self, requests: Sequence[msgspec.Raw], media: str, watched_from: float, start: float) -> list[_Part]:
        answering, snapshot = self._answering, self._answering.snapshot
        asked = [Asked(snapshot, request, media, Trace(Stopwatch(watched_from)), start) for request in requests]
        parts = [_Part(one.trace, begun) for one, begun in zip(asked, answering.begin(asked), strict=True)]
        return [_with_heavy(part, answering) for part in parts]

    async def _finish(self, part: _Part) -> BatchAnswer:
        answering = self._answering
        try:
            if isinstance(part.begun, Exception):
                raise part.begun
            answer = BatchAnswer(status=200, answer=await answering.finish(part.begun, part.calls))
        except Exception as error:
            problem = answering.problem(error, part.trace)
            answer = BatchAnswer(status=problem.status, problem=problem)
        answering.count(answer.status)
        return answer


def _with_heavy(part: _Part, answering: Answering) -> _Part:
    """The part with its heavy stage begun."""
    if isinstance(part.begun, Exception):
        return part
    return _Part(part.trace, part.begun, answering.start_heavy(part.begun))
