"""Who may come in.

At most ``max_in_flight`` requests are read, waiting or ranked. Of these, the ones whose body is there stand in a line.
It may grow while a burst arrives or a release is opened. A line of which ``max_waiting`` were answered and that was
never empty meanwhile is no burst: requests come faster than they can be answered, and every place only makes all of
them later. Then, and until it is empty again, whoever finds ``max_waiting`` there is refused; from the first refusal
on whoever finds three quarters of them, so that those which are let in are answered nearly as soon as without the
overload, when a long line is rare. A line that is empty soon after somebody was refused, since nobody happened to come
for a moment, does not end the overload.

Answers are counted and no time is taken: so it holds for requests of one millisecond and of a hundred, and a process
that did nothing for a while refuses nobody for that. Where the line is full a request is refused before its body is
read, at best before anything is made of it (``service.early_refusals``); else at twice the load most of the time
would go into refusals.

Source: controlled delay, Nichols and Jacobson 2012, doi:10.1145/2208917.2209336; for the queues of servers Maurer 2015,
"Fail at Scale", doi:10.1145/2838344.2839461.
"""

from collections.abc import Callable

from service.problems import HttpProblem
from service.settings import Settings

_CALM = 16
"""Times ``max_waiting`` that were answered since the last one was refused: then a burst may come again. Requests are
read in clumps and come to one process unevenly: in an overload twice as many as may wait are now and then answered in
a row, and a line of thirty let in as a burst.
"""

_KEPT = 0.75
"""Of ``max_waiting``: how long a line may be from which somebody was refused."""


class Admission:
    """Counts requests in; all in one thread, that of the event loop.

    Args:
        settings: ``max_in_flight`` and ``max_waiting``.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_in_flight, self._max_waiting = settings.max_in_flight, settings.max_waiting
        self._kept = max(1, int(_KEPT * settings.max_waiting))
        self._longest = self._max_waiting
        self._in_flight, self._in_line = 0, 0
        self._answered, self._since_refusal = 0, _CALM * settings.max_waiting

    @property
    def in_flight(self) -> int:
        """Requests that are read, waiting or ranked."""
        return self._in_flight

    def admitted(self, count: int = 1) -> "_Place":
        """Within it requests count as in flight, all of them or none.

        Raises:
            HttpProblem: On entering it: 503, there is no room for them.
        """
        return _Place(self.admit, self.let_out, count)

    def in_line(self, count: int = 1) -> "_Place":
        """Within it requests whose bodies were read stand in line until they are answered, all of them or none.

        Raises:
            HttpProblem: On entering it: 503, too many stand in it, and it is no burst.
        """
        return _Place(self.join, self.leave, count)

    def admit(self, count: int = 1) -> None:
        """Enter what :meth:`admitted` gives; once it succeeded, ``let_out`` must follow whatever happens."""
        refusal = self.refusal(count)
        if refusal is not None:
            raise refusal
        self._in_flight += count

    def refusal(self, count: int = 1) -> HttpProblem | None:
        """Why so many that have come may not enter; None where they may."""
        if self._in_line >= self._longest and (refusal := self._line_too_long()) is not None:
            return refusal
        if self._in_flight + count > self._max_in_flight:
            return HttpProblem(503, "overloaded", f"requests in flight: {self._in_flight}, try again later")
        return None

    def let_out(self, count: int = 1) -> None:
        """Leave it."""
        self._in_flight -= count

    def join(self, count: int = 1) -> None:
        """Enter what :meth:`in_line` gives; once it succeeded, ``leave`` must follow whatever happens."""
        if self._in_line >= self._longest and (refusal := self._line_too_long()) is not None:
            raise refusal
        if self._in_line == 0:
            self._answered, self._longest = 0, self._max_waiting
        self._in_line += count

    def leave(self, count: int = 1) -> None:
        """Leave it."""
        self._in_line -= count
        self._answered += count
        self._since_refusal += count

    def _line_too_long(self) -> HttpProblem | None:
        """Refuses whoever finds a full line, but in a burst; ``_answered`` are those answered since it was empty."""
        if self._answered < self._max_waiting and self._since_refusal >= _CALM * self._max_waiting:
            return None
        self._since_refusal, self._longest = 0, self._kept
        detail = f"requests that wait: {self._in_line}, and more come than can be answered, try again later"
        return HttpProblem(503, "overloaded", detail)


class _Place:
    """What is taken for so many requests while something runs, and given back; a generator would cost five times it."""

    __slots__ = ("_count", "_give_back", "_take")

    def __init__(self, take: Callable[[int], None], give_back: Callable[[int], None], count: int) -> None:
        self._take, self._give_back, self._count = take, give_back, count

    def __enter__(self) -> None:
        self._take(self._count)

    def __exit__(self, *raised: object) -> None:
        self._give_back(self._count)
