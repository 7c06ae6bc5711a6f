"""Groups the calls of several threads into few: what they ask at nearly the same time travels as one /rank/batch."""

import math
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from types import TracebackType

from service.api import RankRequest, RankResponse
from service.batching import Batcher, BatchLimits, QueueFullError
from service.client import RankClient
from service.client_errors import BusyError, ClientError, LateError, ProblemError
from service.deadline import Deadline, DeadlineError

_GROUP_REFUSED = frozenset({404, 405, 413, 422})
"""Statuses of a group that each of its requests may not get alone: no such route, too large, too many."""


@dataclass(frozen=True)
class _Asked:
    request: RankRequest
    deadline: Deadline


class GroupingClient:
    """Asks through a client, between start and stop; each thread that calls it gets its own answer or error.

    A group travels when ``group_size`` requests wait, or ``group_wait_s`` after the first of them. Under load, requests
    also wait for a free thread, and groups grow by themselves. Only requests whose deadlines are within a factor of two
    travel together, and all of a group get the earliest deadline: an answer leaves the service when its last part is
    done.

    Args:
        client: Asks.
        group_wait_s: How long the first request of a group waits for others; 0 is not at all.
        group_size: Most requests of a group; at most ``max_batch`` of the service.
        threads: Groups under way at the same time.
        waiting: Most requests that wait; one more is refused.
    """

    def __init__(
        self,
        client: RankClient,
        *,
        group_wait_s: float = 0.001,
        group_size: int = 16,
        threads: int = 2,
        waiting: int = 1_024,
    ) -> None:
        self._client = client
        limits = BatchLimits(calls=group_size, rows=group_size, wait_s=group_wait_s, waiting=waiting)
        self._batcher: Batcher[_Asked, RankResponse | Exception] = Batcher(
            "rank-groups", self._ask, threads=threads, limits=limits
        )

    def __enter__(self) -> "GroupingClient":
        self._batcher.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batcher.__exit__(kind, error, trace)

    def rank(self, request: RankRequest, *, timeout_s: float | None = None) -> RankResponse:
        """The answer to a request, as ``RankClient.rank`` has it.

        Raises:
            ClientError: There is none; see ``service.client_errors``.
        """
        timeout_s = self._client.timeout_s if timeout_s is None else timeout_s
        asked = _Asked(request, Deadline.after_ms(1000 * timeout_s))
        late = LateError(f"not answered within {1000 * timeout_s:.0f} ms")
        if timeout_s <= 0:
            raise late
        try:
            future = self._batcher.submit(_time_class(request, timeout_s), asked, rows=1, deadline=asked.deadline)
        except QueueFullError as error:
            raise BusyError(str(error)) from None
        try:
            outcome = future.result(max(asked.deadline.remaining_s(), 0))
        except (TimeoutError, DeadlineError, CancelledError):
            future.cancel()
            raise late from None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _ask(self, group: Sequence[_Asked]) -> list[RankResponse | Exception]:
        """One call for a group, or one for each where the service does not take them together."""
        if len(group) == 1:
            return [self._alone(group[0])]
        left_s = min(asked.deadline.at for asked in group) - time.monotonic()
        try:
            return [*self._client.rank_batch([asked.request for asked in group], timeout_s=left_s)]
        except ClientError as error:
            if not isinstance(error, ProblemError) or error.status not in _GROUP_REFUSED:
                return [error] * len(group)
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass  # a request that cannot be encoded; the others can
        return [self._alone(asked) for asked in group]

    def _alone(self, asked: _Asked) -> RankResponse | Exception:
        try:
            return self._client.rank(asked.request, timeout_s=asked.deadline.remaining_s())
        except Exception as error:
            return error


def _time_class(request: RankRequest, timeout_s: float) -> int:
    """Requests of one class have deadlines within a factor of two."""
    own_s = math.inf if request.timeout_ms is None else request.timeout_ms / 1000
    return math.frexp(min(timeout_s, own_s))[1]
