"""POST /rank: one request, one answer; a raw ASGI callable, as a framework's layers cost as much as ranking."""

import time

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.answering import Answering, Asked
from service.request_log import Trace
from service.wire import encode_response

PATH = "/rank"


class RankRoute:
    """Answers /rank. Where no request more may be in flight, 503 comes before the body is read.

    Args:
        answering: Answers the request.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, to an answer or a problem."""
        trace, start = Trace(), time.monotonic()
        try:
            with self._answering.admission.admitted():
                response = await self._ranked(scope, receive, trace, start)
        except Exception as error:
            response = self._answering.refuse(error, trace)
        self._answering.count(response.status_code)
        await response(scope, receive, send)

    async def _ranked(self, scope: Scope, receive: Receive, trace: Trace, start: float) -> Response:
        answering = self._answering
        body, media = await answering.body(scope, receive)
        with answering.admission.in_line():
            begun = await answering.begun(Asked(answering.snapshot, body, media, trace, start))
            answer = await answering.finish(begun, answering.start_heavy(begun))
        return Response(encode_response(answer, media), media_type=media)
