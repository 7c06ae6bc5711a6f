"""POST /rank: one request, one answer; a raw ASGI callable, as a framework's layers cost as much as ranking."""

import time

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
        answering = self._answering
        trace, start = Trace(), time.monotonic()
        try:
            answer, media = await self._ranked(scope, receive, trace, start)
        except Exception as error:
            response = answering.refuse(error, trace)
            answering.count(response.status_code)
            await response(scope, receive, send)
            return
        answering.count(200)
        length = str(len(answer)).encode()
        headers = [(b"content-length", length), (b"content-type", media.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _ranked(self, scope: Scope, receive: Receive, trace: Trace, start: float) -> tuple[bytes, str]:
        """The answer as bytes, and its media type; places are taken by hand, as two context managers cost more."""
        answering, admission = self._answering, self._answering.admission
        admission.admit()
        try:
            body, media = await answering.body(scope, receive)
            admission.join()
            try:
                begun = await answering.begun(Asked(answering.snapshot, body, media, trace, start))
                answer = await answering.finish(begun, answering.start_heavy(begun))
            finally:
                admission.leave()
            return encode_response(answer, media), media
        finally:
            admission.let_out()
