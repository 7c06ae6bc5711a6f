"""Sends the head of an answer together with what follows it.

uvicorn writes them one after the other: each is a call of the kernel and wakes the caller, who can do nothing with a
head alone.
"""

import asyncio

_CONTINUE = b"HTTP/1.1 100 "
"""Not the head of an answer: the caller waits for it before it sends the body."""


class JoinedAnswer:
    """The transport of one answer, as uvicorn's cycle of a request uses it.

    Not for answers that may be a head alone, as to HEAD.

    Args:
        transport: Of the connection.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._is_sent = False

    def write(self, data: bytes) -> None:
        """Keep what is the head, and send it with the next piece."""
        if self._is_sent or data.startswith(_CONTINUE):
            self._send(data)
        elif self._head is None:
            self._head = data
        else:
            self._is_sent = True
            self._send(self._head + data)

    def close(self) -> None:
        """Send what was kept, and close the connection once it has gone."""
        if self._head is not None and not self._is_sent:
            self._send(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self._transport.is_closing()

    def _send(self, data: bytes) -> None:
        if not self._transport.is_closing():  # else uvloop raises until the protocol is told that the caller left
            self._transport.write(data)
