"""Ends connections whose headers are longer than any caller's: uvicorn keeps as much of them as comes.

A gigabyte of headers would arrive, and be held, well within the time that they may take.
"""

import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.joined_answer import JoinedAnswer

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 10
"""Of a request's line and headers, or of a chunked body's trailers; what comes in one read may be more."""

_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 31\r\nconnection: close\r\n\r\n"
    b"the headers are longer than 64K"
)


class LimitedHeaders(HttpToolsProtocol):
    """uvicorn's protocol, that counts what it was sent since the last event of the parser other than a header."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._pending = 0

    def data_received(self, data: bytes) -> None:
        """As of a protocol of asyncio."""
        self._pending += len(data)
        super().data_received(data)
        if self._pending > MAX_BYTES and not self.transport.is_closing():
            log.warning("a connection ended whose headers are longer than %d bytes", MAX_BYTES)
            self.transport.write(_REFUSAL)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._pending = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its headers are there."""
        self._pending = 0
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":
            self.cycle.transport = JoinedAnswer(self.transport)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Some of its body is there."""
        self._pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._pending = 0
        super().on_message_complete()
