"""Ends connections that do not bring the headers of a request in time.

uvicorn ends a connection that rests after an answer, and ``service.body`` a body that does not come; one that was
opened and sends nothing, or its headers a byte at a time, would hold a descriptor for ever.
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


class HeaderTimeout:
    """Looks at all connections now and then, which costs requests nothing.

    Args:
        timeout_s: For the headers, from when the connection was opened or left its rest; seen up to one look later.
        clock: Seconds that never go back.
    """

    def __init__(self, timeout_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._since: dict[Connection, tuple[Any, float]] = {}

    def look(self, connections: Iterable[Any]) -> int:
        """End those that are late; how many.

        Args:
            connections: As ``Connection`` tells.
        """
        now, ended = self._clock(), 0
        waiting: dict[Connection, tuple[Any, float]] = {}
        for connection in connections:
            if not _brings_headers(connection):
                continue
            last, since = self._since.get(connection, (connection.cycle, now))
            if last is not connection.cycle:  # it answered a request meanwhile, and rested
                last, since = connection.cycle, now
            if now - since > self._timeout_s:
                connection.transport.close()
                ended += 1
            else:
                waiting[connection] = last, since
        self._since = waiting
        if ended:
            log.warning("%d connections ended that brought no whole header in %g s", ended, self._timeout_s)
        return ended


def _brings_headers(connection: Connection) -> bool:
    """Whether it is neither in a request nor rests after one."""
    in_request = connection.cycle is not None and not connection.cycle.response_complete
    return not in_request and connection.timeout_keep_alive_task is None and connection.transport is not None
