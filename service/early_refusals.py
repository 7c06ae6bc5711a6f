"""Refuses a request as soon as its headers are there, before uvicorn makes a task of it.

In an overload most requests are refused, and what that takes is lost to those which are answered. A refusal from here
costs two fifths of one that goes through the application, which answers whatever is not plainly such a request.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.header_limit import LimitedHeaders
from service.read_ahead import NoReadAhead

Refusal = Callable[[], Response | None]
"""What a request gets that is refused, counted; None where it may go on."""


class EarlyRefusals(LimitedHeaders):
    """uvicorn's protocol, that asks before it begins a POST whether it is refused.

    Args:
        refusals: By path, as it stands in the line of a request.
    """

    def __init__(self, *given: Any, refusals: Mapping[bytes, Refusal], **options: Any) -> None:
        super().__init__(*given, **options)
        self._refusals = refusals
        self._may_refuse = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As of a protocol of asyncio."""
        super().connection_made(transport)
        self.flow = NoReadAhead(transport, self.pipeline)

    def data_received(self, data: bytes) -> None:
        """One read, of which one request is refused here: thousands would keep the loop from all other connections.

        What is behind it the application answers, in turn with the others, and reading pauses until the last of them.
        """
        self._may_refuse = True
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins: its connection rests no more, also where both came in one read with what was refused."""
        self._unset_keepalive_if_required()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The headers of a request are there."""
        refusal = self._refusal()
        if refusal is None:
            super().on_headers_complete()
        else:
            self._pending, self._may_refuse = 0, False
            self.cycle = _Refused()  # type: ignore[assignment]
            self.transport.write(refusal)
            self.on_response_complete()

    def on_message_complete(self) -> None:
        """The whole request is there; where it was answered before that, its connection rests from now on."""
        super().on_message_complete()
        if self.cycle.response_complete and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _refusal(self) -> bytes | None:
        """The answer to a request that is refused; None where the application is to answer."""
        refuse = self._refusals.get(self.url)
        if refuse is not None and self._is_plain():
            with suppress(Exception):  # the application asks the same, logs why it fails and answers that
                if (refusal := refuse()) is not None:
                    return _as_bytes(refusal, self.server_state.default_headers)
        return None

    def _is_plain(self) -> bool:
        """Whether nothing is before it on its connection, and nothing special is wanted of its answer."""
        return (
            self._may_refuse
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.transport.is_closing()
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self._is_in_chunks()
        )

    def _is_in_chunks(self) -> bool:
        """Whether its body may yet turn out to be no HTTP, and get 400: one request would have two answers."""
        return any(name == b"transfer-encoding" for name, _ in self.headers)


class _Refused:
    """In place of uvicorn's cycle of a request: one that is over. Each is another, by which connections that rest are
    told from those that are asked again and again."""

    response_complete = True
    message_event = asyncio.Event()


def _as_bytes(response: Response, headers: list[tuple[bytes, bytes]]) -> bytes:
    parts = [STATUS_LINE[response.status_code]]
    for name, value in (*headers, *response.raw_headers):
        parts += (name, b": ", value, b"\r\n")
    return b"".join((*parts, b"\r\n", response.body))
