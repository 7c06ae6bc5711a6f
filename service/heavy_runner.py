"""Where calls of the heavy stage run: in threads of this process, those of several requests together."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from contracts.errors import AdsieveError
from service.batching import Batcher, QueueFullError
from service.deadline import Deadline, DeadlineError
from service.heavy import HeavyCall, HeavyUnavailableError, run_calls

log = logging.getLogger(__name__)


class HeavyRunner(Protocol):
    """Runs calls of the heavy stage."""

    def submit(self, call: HeavyCall, deadline: Deadline) -> "Future[np.ndarray]":
        """The logits [N, T] of a call, once they are there."""
        ...


class BatchedRunner:
    """Runs calls in the threads of a batcher."""

    def __init__(self, batcher: Batcher[HeavyCall, np.ndarray]) -> None:
        self._batcher = batcher

    def submit(self, call: HeavyCall, deadline: Deadline) -> "Future[np.ndarray]":
        joins = call.heavy.batches is not False
        return self._batcher.submit(id(call.heavy), call, rows=len(call.ads), deadline=deadline, joins=joins)


class DirectRunner:
    """Runs a call at once, in the thread that asks."""

    def submit(self, call: HeavyCall, deadline: Deadline) -> "Future[np.ndarray]":
        future: Future[np.ndarray] = Future()
        try:
            future.set_result(run_calls([call])[0])
        except Exception as error:
            future.set_exception(error)
        return future


def start_calls(runner: HeavyRunner, calls: Sequence[HeavyCall], deadline: Deadline) -> list["Future[np.ndarray]"]:
    """Let the calls of one request run.

    Raises:
        DeadlineError: It has passed.
        QueueFullError: Too many calls wait already.
    """
    if deadline.has_passed:
        raise DeadlineError("it passed before the heavy stage")
    return [runner.submit(call, deadline) for call in calls]


def results_of(futures: Sequence["Future[np.ndarray]"], deadline: Deadline) -> list[np.ndarray]:
    """Results of the calls, which are done or late by now; one that has not begun never will.

    Raises:
        DeadlineError: One is late.
        Exception: Whatever one raised.
    """
    late = [future for future in futures if not future.done()]
    for future in late:
        future.cancel()
    if late or deadline.has_passed:
        raise DeadlineError("it passed in the heavy stage")
    return [future.result() for future in futures]


def unavailable(error: Exception) -> HeavyUnavailableError:
    """Why there are no heavy scores. An auction goes on with the light order whatever happened."""
    match error:
        case HeavyUnavailableError():
            return error
        case DeadlineError():
            return HeavyUnavailableError("deadline", str(error))
        case QueueFullError():
            return HeavyUnavailableError("overloaded", str(error))
    if not isinstance(error, AdsieveError):  # a bug; the degraded answer's line tells of what was raised on purpose
        log.error("the heavy stage failed: %s", error, exc_info=error)
    return HeavyUnavailableError("failed", f"{type(error).__name__}: {error}")
