"""Ends connections whose clients do not bring the headers of a request, or do not read an answer, in time.

uvicorn ends a connection that rests after an answer, and ``service.body`` a body that does not come. One that was
opened and sends nothing, or its headers a byte at a time, would hold a descriptor for ever; one that never reads its
answer, that answer too, since a connection is closed only once all was sent.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Connection(Protocol):
    """What is read of a connection of uvicorn, alike for both its parsers of HTTP."""

    cycle: Any
    """The last request whose headers came; None before the first."""
    timeout_keep_alive_task: Any
    """Ends a connection that rests after an answer; None where it does not rest."""
    transport: Any
    """None before the connection begins."""


class SlowClients:
    """Looks at all connections now and then, which costs requests nothing.

    Args:
        header_timeout_s: For the headers, from when the connection was opened or left its rest; seen up to one look
            later.
        write_timeout_s: For what was written and not sent, from when it was first seen until all of it is gone or the
            next request begins.
        clock: Seconds that never go back.
    """

    def __init__(
        self, header_timeout_s: float, write_timeout_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._headers = _Late(_brings_headers, header_timeout_s, clock)
        self._unread = _Late(_has_unsent, write_timeout_s, clock)

    def look(self, connections: Iterable[Any]) -> int:
        """End those that are late; how many.

        Args:
            connections: As ``Connection`` tells.
        """
        begun = [connection for connection in connections if connection.transport is not None]
        silent, unread = self._headers.look(begun), self._unread.look(begun)
        for connection in silent:
            connection.transport.close()
        for connection in unread:
            connection.transport.abort()  # to close it would wait for its client
        for count, what in ((len(silent), "brought no whole header"), (len(unread), "did not read their answers")):
            if count:
                log.warning("%d connections ended that %s in time", count, what)
        return len({*silent, *unread})


class _Late:
    """Connections that have been in a state for too long, within one request.

    Args:
        is_in: Whether a connection is in it.
    """

    def __init__(self, is_in: Callable[[Connection], bool], timeout_s: float, clock: Callable[[], float]) -> None:
        self._is_in, self._timeout_s, self._clock = is_in, timeout_s, clock
        self._since: dict[Connection, tuple[Any, float]] = {}

    def look(self, connections: Iterable[Connection]) -> list[Connection]:
        """Those that are late now."""
        now, late = self._clock(), []
        waiting: dict[Connection, tuple[Any, float]] = {}
        for connection in connections:
            if not self._is_in(connection):
                continue
            last, since = self._since.get(connection, (connection.cycle, now))
            if last is not connection.cycle:  # it had another request meanwhile
                last, since = connection.cycle, now
            if now - since > self._timeout_s:
                late.append(connection)
            else:
                waiting[connection] = last, since
        self._since = waiting
        return late


def _brings_headers(connection: Connection) -> bool:
    """Whether it is neither in a request nor rests after one."""
    in_request = connection.cycle is not None and not connection.cycle.response_complete
    return not in_request and connection.timeout_keep_alive_task is None


def _has_unsent(connection: Connection) -> bool:
    return bool(connection.transport.get_write_buffer_size())
