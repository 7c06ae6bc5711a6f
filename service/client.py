"""A client of /rank and /rank/batch: pooled connections, deadlines, and errors that say what happened.

It needs msgspec and urllib3 and nothing of the server. Requests and answers are the typed structs of ``service.api``;
``service.client_errors`` draws the errors.
"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import urllib3
from msgspec import structs

from service.api import MAX_TIMEOUT_MS, BatchAnswer, BatchRequest, BatchResponse, RankRequest, RankResponse
from service.client_errors import (
    ClientError,
    LateError,
    ProblemError,
    UnreadableError,
    is_unanswered,
    problem_error,
    told,
)
from service.media import ENCODERS, JSON, MSGPACK
from service.posting import Answer, post

T = TypeVar("T")
Outcome: TypeAlias = RankResponse | ClientError

_PAUSE_S = 0.01
"""Before a connection that was refused is tried again."""


class RankClient:
    """Asks one service; any number of threads may share it.

    Args:
        url: Of the service, such as ``http://rank:8000``.
        token: Bearer token, if the service asks for one.
        timeout_s: How long a call may take where it does not say itself.
        reserve_s: Part of that which the service is not told of, for the way there and back: it then answers in light
            order in time rather than fully too late.
        connections: Most at the same time, kept open; a thread more waits for one.
        media: What bodies are written in. JSON has no NaN and sends null in its place.
        retries: Times that a call is repeated whose connection was refused, or dropped before anything came back.
        wait_if_overloaded: Whether a 503 that says when to ask again is waited for, where the deadline allows.

    Example:
        >>> with RankClient("http://127.0.0.1:8000", timeout_s=0.05) as client:
        ...     request = RankRequest(scenario="shopping", query={"country": "DE"}, candidates=["ad-1"])
        ...     client.rank(request).ads.ids  # doctest: +SKIP
        ['ad-1']
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 1.0,
        reserve_s: float = 0.002,
        connections: int = 8,
        media: Literal["msgpack", "json"] = "msgpack",
        retries: int = 1,
        wait_if_overloaded: bool = False,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {url!r}")
        self._url, self.timeout_s, self._reserve_s = url.rstrip("/"), timeout_s, reserve_s
        self._media = MSGPACK if media == "msgpack" else JSON
        self._retries, self._waits = retries, wait_if_overloaded
        self._headers: dict[str, Any] = {"Content-Type": self._media, "Accept": self._media}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}".encode()  # a text would be sent as Latin-1
        self._pool = urllib3.PoolManager(maxsize=connections, block=True)

    def __enter__(self) -> "RankClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.clear()

    def rank(self, request: RankRequest, *, timeout_s: float | None = None) -> RankResponse:
        """The answer to a request.

        Args:
            timeout_s: The caller's deadline; the service is told what is left of it, or ``timeout_ms`` of the request
                where that is shorter.

        Raises:
            ClientError: There is none; see ``service.client_errors``.
        """
        answer = self._ask("/rank", lambda left_s: self._timed(request, left_s), timeout_s)
        return self._decoded(answer, RankResponse)

    def rank_batch(self, requests: Sequence[RankRequest], *, timeout_s: float | None = None) -> list[Outcome]:
        """One call for several requests: for each its answer, or the problem that the service has with it.

        Raises:
            ClientError: The call as a whole failed, also where it holds more requests than the service takes.
        """
        answer = self._ask("/rank/batch", lambda left_s: self._batch(requests, left_s), timeout_s)
        answers = self._decoded(answer, BatchResponse).answers
        if len(answers) != len(requests):
            raise UnreadableError(f"{self._url} gave {len(answers)} answers to {len(requests)} requests")
        return [_outcome(answer) for answer in answers]

    def rank_many(
        self, requests: Sequence[RankRequest], *, timeout_s: float | None = None, batch_size: int = 32
    ) -> list[Outcome]:
        """Any number of requests, in calls of at most ``batch_size``: for each its answer, or why there is none.

        One that has none costs no other its answer, and raises nothing: look at the type of each.
        """
        end = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        outcomes: list[Outcome] = []
        for first in range(0, len(requests), batch_size):
            batch = requests[first : first + batch_size]
            try:
                outcomes += self.rank_batch(batch, timeout_s=end - time.monotonic())
            except ClientError as error:
                outcomes += [error] * len(batch)
        return outcomes

    def _ask(self, path: str, content: Callable[[float], object], timeout_s: float | None) -> Answer:
        """The answer with status 200 to what ``content`` makes of the seconds that are left."""
        url, timeout_s = self._url + path, self.timeout_s if timeout_s is None else timeout_s
        end, failures = time.monotonic() + timeout_s, 0
        while (left_s := end - time.monotonic()) > 0:
            body = ENCODERS[self._media].encode(content(left_s))
            try:
                answer = post(self._pool, url, body, self._headers, end)
            except Exception as error:
                failures += 1
                if failures > self._retries or not is_unanswered(error):
                    raise told(error, url, timeout_s) from error
                pause_s = _PAUSE_S
            else:
                if answer.status == 200:
                    return answer
                problem = problem_error(answer)
                if problem.retry_after_s is None or not self._waits or problem.status != 503:
                    raise problem
                pause_s = max(problem.retry_after_s, _PAUSE_S)
                if time.monotonic() + pause_s >= end:
                    raise problem
            time.sleep(min(pause_s, max(end - time.monotonic(), 0)))
        raise LateError(f"{url} was not answered within {1000 * timeout_s:.0f} ms")

    def _timed(self, request: RankRequest, left_s: float) -> RankRequest:
        """The request, that tells the service what is left."""
        left_ms = min(1000 * max(left_s - self._reserve_s, left_s / 2), MAX_TIMEOUT_MS)
        return structs.replace(request, timeout_ms=min(left_ms, request.timeout_ms or left_ms))

    def _batch(self, requests: Sequence[RankRequest], left_s: float) -> BatchRequest:
        return BatchRequest(requests=[self._timed(request, left_s) for request in requests])

    def _decoded(self, answer: Answer, type_: type[T]) -> T:
        try:
            if self._media == MSGPACK:
                return msgspec.msgpack.decode(answer.body, type=type_)
            return msgspec.json.decode(answer.body, type=type_)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise UnreadableError(f"{self._url}: no {type_.__name__} as {self._media}: {error}") from None


def _outcome(answer: BatchAnswer) -> Outcome:
    if answer.answer is not None:
        return answer.answer
    if answer.problem is None:
        return UnreadableError(f"neither an answer nor a problem, status {answer.status}")
    return ProblemError(answer.problem)
