"""Work on the event loop itself, a piece at a time; between two pieces the loop looks at its connections.

Else all that stand in line would be ranked in one go, and whoever came meanwhile would wait unseen and uncounted.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import coroutine
from typing import Any, Generic, TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
T = TypeVar("T")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class _Told(Generic[Answer]):
    """What somebody who waited is told: an answer or an error; an empty one says that it is their turn."""

    __slots__ = ("answers",)

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = answers


_OWN_TURN: _Told[Any] = _Told()


@coroutine
def _once_round() -> Generator[None, None, None]:
    """Let the event loop look at everybody else once; ``asyncio.sleep(0)`` in one step."""
    yield


class Turns(Generic[Asked, Answer]):
    """Gives turns in the order of asking.

    Args:
        together: Answers several who wait one behind the other, each with an answer or an error.
    """

    def __init__(self, together: Callable[[Sequence[Asked]], Sequence[Answer | Exception]]) -> None:
        self._together = together
        self._waiting: deque[tuple[asyncio.Future[_Told[Answer]], tuple[Asked, ...]]] = deque()
        self._is_taken = False

    async def run(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Call a function when it is its turn."""
        await (self._wait(()) if self._is_taken else self._begin())
        try:
            return function(*args)
        finally:
            self._pass_on()

    async def ask(self, asked: Asked, most: int) -> Answer:
        """What ``together`` answers, for at most so many at once: those who wait when it is the turn of the first."""
        told = await (self._wait((asked,)) if self._is_taken else self._begin())
        if not told.answers:
            try:
                told = self._lead(asked, most)
            finally:
                self._pass_on()
        (answer,) = told.answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _lead(self, asked: Asked, most: int) -> _Told[Answer]:
        followers: list[asyncio.Future[_Told[Answer]]] = []
        group = [asked]
        while self._waiting and len(group) < most:
            future, theirs = self._waiting[0]
            if not future.done():  # else whoever waited was cancelled
                if not theirs:
                    break
                followers.append(future)
                group += theirs
            self._waiting.popleft()
        if not followers:
            (answer,) = self._together(group)
            return _Told(answer)
        try:
            first, *others = self._together(group)
        except Exception as error:
            first, others = error, [error] * len(followers)
        for future, answer in zip(followers, others, strict=True):
            future.set_result(_Told(answer))
        return _Told(first)

    async def _begin(self) -> _Told[Answer]:
        """The turn of somebody who found it free."""
        self._is_taken = True
        try:
            await _once_round()  # whoever came at the same time is counted in, or refused, first
        except asyncio.CancelledError:
            self._pass_on()
            raise
        return _OWN_TURN

    async def _wait(self, asked: tuple[Asked, ...]) -> _Told[Answer]:
        turn: asyncio.Future[_Told[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, asked))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and not turn.result().answers:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            turn, _ = self._waiting.popleft()
            if not turn.done():  # else whoever waited was cancelled
                turn.set_result(_OWN_TURN)
                return
        self._is_taken = False
