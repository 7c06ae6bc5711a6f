"""Takes connections so that they fall evenly on the workers that share one socket.

Each connection wakes all workers that wait for it, and most are taken by the same one: the others are told of it a
moment later, every time. A worker that holds more connections than its share then refuses requests while another rests.
Here workers post how many connections they hold in shared memory, and one that holds more than another lets that one go
first. How long is limited, since the other may be stopped or busy.
"""

import asyncio
import logging
import select
import socket
import sys
import time
from collections.abc import Callable, MutableSequence, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

ABSENT = -1
"""In place of a number of connections: no worker takes any there."""

PATIENCE_S = 0.02
"""How long one connection is left to a sibling; longer than a request, or other processes, keep it busy."""
STEP_S = 0.001
"""Between two looks at whether it took it."""
_BLAMED_S = 1.0
"""How long it counts against a sibling that it left a connection waiting, unless it took or lost one meanwhile."""
_MOST = 64
"""Taken in one go, so that requests are not kept waiting."""
_FULL_S = 1.0
"""Pause where this process may open no file more; asyncio's."""


class _Blame(NamedTuple):
    """Of a sibling that held so many ``connections``: how long one more is left to it, until a moment."""

    connections: int
    patience_s: float
    until: float


class Balance:
    """Tells which connections are this worker's to take: those that it would get if all went to whoever has fewest.

    A sibling that is stopped or dead delays a connection by ``PATIENCE_S``, the next ones by half of what they waited
    before, and soon not at all: all of a second together by less than twice ``PATIENCE_S``.

    Args:
        counts: Connections of each worker, by place; ``ABSENT`` where there is none. Siblings write theirs meanwhile,
            and the supervisor removes those of the dead.
        place: Of this worker.
        clock: Seconds that never go back.
    """

    def __init__(
        self, counts: MutableSequence[int], place: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counts, self._place, self._clock = counts, place, clock
        self._blames: dict[int, _Blame] = {}
        self._waits_since: float | None = None

    def post(self, count: int) -> None:
        """Tell siblings how many connections this worker holds."""
        self._counts[self._place] = count

    def leave(self) -> None:
        """Tell siblings that this worker takes none."""
        self.post(ABSENT)

    def ours(self, waiting: int) -> int:
        """How many of the connections that wait to take; where none, ask again after ``STEP_S`` if they still wait."""
        now, counts = self._clock(), list(self._counts)
        own = counts[self._place]
        siblings = {place: count for place, count in enumerate(counts) if count != ABSENT and place != self._place}
        trusted = {place: count for place, count in siblings.items() if self._patience_s(place, count, now)}
        share = level([own, *trusted.values()], waiting) - own
        if share > 0:
            self._waits_since = None
            return share
        if self._waits_since is None:
            self._waits_since = now
        first = min(trusted, key=trusted.__getitem__)
        patience_s = self._patience_s(first, counts[first], now)
        if now - self._waits_since < patience_s:
            return 0
        halved = patience_s / 2
        self._blames[first] = _Blame(counts[first], halved if halved >= STEP_S else 0.0, now + _BLAMED_S)
        self._waits_since = None
        return 1

    def was_taken(self) -> None:
        """A sibling took what was left to it."""
        self._waits_since = None

    def _patience_s(self, place: int, count: int, now: float) -> float:
        blame = self._blames.get(place)
        return PATIENCE_S if blame is None or blame.connections != count or now > blame.until else blame.patience_s


def level(counts: Sequence[int], more: int) -> int:
    """How many the fewest hold after ``more`` went one by one to whoever had fewest, the larger one where they differ.

    Example:
        >>> level([0, 5, 1], 4), level([3, 3], 1), level([9, 2], 100)
        (3, 4, 56)
    """
    ordered = sorted(counts)
    for number, (count, following) in enumerate(pairwise(ordered), 1):
        room = number * (following - count)
        if more <= room:
            return count - (-more // number)
        more -= room
    return ordered[-1] - (-more // len(ordered))


def waiting_at(listener: socket.socket) -> int:
    """How many connections wait to be taken, at least 1: a listening socket's ``tcpi_unacked`` (Linux, tcp(7))."""
    try:
        told = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
    except (OSError, AttributeError):
        return 1
    return max(1, int.from_bytes(told[24:28], sys.byteorder))


class Connections(set[Any]):
    """The connections of a server; calls ``left`` when one has ended."""

    def __init__(self, left: Callable[[], None]) -> None:
        super().__init__()
        self._left = left

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._left()


class BalancedServer:
    """Takes the connections that are this worker's share. ``close`` and ``wait_closed`` are as asyncio's.

    Args:
        listener: Bound; shared with the other workers.
        balance: Tells the share.
        make: The protocol of a new connection, which is in ``connections`` from ``connection_made`` to
            ``connection_lost``.
    """

    def __init__(self, listener: socket.socket, balance: Balance, make: Callable[[], asyncio.Protocol]) -> None:
        self._listener, self._balance, self._make = listener, balance, make
        self.connections = Connections(self._post)
        self._loop = asyncio.get_running_loop()
        self._opening: dict[asyncio.Protocol, asyncio.Task[None]] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._waiting = select.poll()
        self._is_open = False

    def start(self, backlog: int) -> None:
        """Begin to take connections."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._waiting.register(self._listener, select.POLLIN)
        self._is_open = True
        self._watch()

    def close(self) -> None:
        """Take what waits already, then no more; the others go on."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        while self._take():
            pass
        self._balance.leave()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Until what was taken last has its protocol."""
        if self._opening:
            await asyncio.wait(list(self._opening.values()))

    def _watch(self) -> None:
        self._post()
        self._loop.add_reader(self._listener, self._on_connection)

    def _on_connection(self) -> None:
        share = self._balance.ours(waiting_at(self._listener))
        if not share:
            self._wait(STEP_S)
        for _ in range(min(share, _MOST)):
            if not self._take():
                return

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)  # else it would be called over and over
        self._pause = self._loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._pause = None
        if not self._waiting.poll(0):
            self._balance.was_taken()
        self._watch()

    def _take(self) -> bool:
        """Take one connection; whether there was one."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # a sibling took it, or its client left
            return False
        except OSError as error:
            log.error("no connection can be taken, the next try is in %g s: %s", _FULL_S, error)
            if self._is_open:
                self._balance.leave()
                self._wait(_FULL_S)
            return False
        connection.setblocking(False)
        protocol = self._make()
        self._opening[protocol] = self._loop.create_task(self._open(connection, protocol))
        self._post()
        return True

    async def _open(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError as error:
            log.warning("a connection ended before it began: %s", error)
            connection.close()
        finally:
            del self._opening[protocol]
            self._post()

    def _post(self) -> None:
        """Tell how many there are; one that begins may be in both for a moment."""
        if self._is_open:
            beginning = sum(protocol not in self.connections for protocol in self._opening)
            self._balance.post(len(self.connections) + beginning)
