"""Dynamic batching: calls of several requests to one model, made together by threads that do nothing else.

A thread takes whatever waits for the same model when it becomes free, at most so much of it, so that under load batches
grow by themselves and a lone call waits for nobody; ``wait_s`` adds a pause in which others may join. A call whose
deadline has passed, or whose caller has given up, is left out. Where a batch fails, its calls run one by one, so that
a wrong call of one caller costs no other its result.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, TypeVar

from service.deadline import Deadline, DeadlineError

T = TypeVar("T")
R = TypeVar("R")


class QueueFullError(Exception):
    """As many calls wait as may: this one would only make all of them later."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """How calls are put together.

    Args:
        calls: Most calls of a batch; 1 runs each alone.
        rows: Most rows of a batch of several calls.
        wait_s: How long the first call of a batch waits for others.
        waiting: Most calls that wait; one more is refused.
    """

    calls: int = 8
    rows: int = 4_096
    wait_s: float = 0.0
    waiting: int = 256


@dataclass(frozen=True, kw_only=True)
class _Waiting(Generic[T, R]):
    key: Hashable
    call: T
    rows: int
    deadline: Deadline
    joins: bool
    future: "Future[R]" = field(default_factory=Future)


class Batcher(Generic[T, R]):
    """Runs calls in threads of its own between start and stop.

    Args:
        name: Of the threads.
        run: Several calls of one key to a result each, in order. What it raises, all of them raise.
        threads: Batches that run at the same time.
        limits: Of a batch, and of what waits.
        observe: Told of each batch: how many calls, and the seconds that the first of them waited.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[T]], Sequence[R]],
        *,
        threads: int,
        limits: BatchLimits,
        observe: Callable[[int, float], None] = lambda calls, waited_s: None,
    ) -> None:
        self._name, self._run, self._num_threads = name, run, threads
        self._limits, self._observe = limits, observe
        self._queue: deque[tuple[float, _Waiting[T, R]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Batcher[T, R]":
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            for number in range(self._num_threads)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def __len__(self) -> int:
        """How many calls wait."""
        return len(self._queue)

    def submit(self, key: Hashable, call: T, *, rows: int, deadline: Deadline, joins: bool = True) -> "Future[R]":
        """Let a call run, together with others of the same key.

        Args:
            joins: False lets it run alone, without a wait for others.
            rows: Its size, in whatever ``limits.rows`` counts.
            deadline: Given up when it passes: the future raises DeadlineError.

        Raises:
            QueueFullError: Too many wait.
            RuntimeError: Before start or after stop.
        """
        key = key if joins else object()
        waiting: _Waiting[T, R] = _Waiting(key=key, call=call, rows=rows, deadline=deadline, joins=joins)
        with self._changed:
            if not self._threads or self._stopping:
                raise RuntimeError(f"{self._name}: no thread runs calls, the application has not begun or is over")
            if len(self._queue) >= self._limits.waiting:
                raise QueueFullError(f"calls that wait for {self._name}: {len(self._queue)}")
            self._queue.append((time.monotonic(), waiting))
            self._changed.notify_all()  # one thread may wait for calls of another key, and would sleep on
        return waiting.future

    def _work(self) -> None:
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        """Whether there was anything; a call is held no longer than it takes, and with it the release it belongs to."""
        with self._changed:
            batch = self._next()
        if batch is None:
            return False
        self._answer(batch)
        return True

    def _next(self) -> list[_Waiting[T, R]] | None:
        """The calls to run next, at least one; None once it is over and nothing waits."""
        while True:
            if not self._queue:
                if self._stopping:
                    return None
                self._changed.wait()
                continue
            since, first = self._queue[0]
            left_s = since + self._limits.wait_s - time.monotonic()
            if not first.joins or left_s <= 0 or self._stopping or self._is_full(first.key):
                break
            self._changed.wait(left_s)  # after which another may be the first
        batch = self._take(first.key)
        self._observe(len(batch), time.monotonic() - since)
        return batch

    def _is_full(self, key: Hashable) -> bool:
        most = self._limits.calls
        return most < 2 or sum(1 for _, waiting in self._queue if waiting.key == key) >= most

    def _take(self, key: Hashable) -> list[_Waiting[T, R]]:
        """The oldest calls of a key that fit into one batch; at least one."""
        batch: list[_Waiting[T, R]] = []
        others: deque[tuple[float, _Waiting[T, R]]] = deque()
        rows = 0
        while self._queue:
            since, waiting = self._queue.popleft()
            fits = not batch or (len(batch) < self._limits.calls and rows + waiting.rows <= self._limits.rows)
            if waiting.key == key and fits:
                batch.append(waiting)
                rows += waiting.rows
            else:
                others.append((since, waiting))
        self._queue = others
        return batch

    def _answer(self, batch: Sequence[_Waiting[T, R]]) -> None:
        alive = [waiting for waiting in batch if waiting.future.set_running_or_notify_cancel()]
        for waiting in alive:
            if waiting.deadline.has_passed:
                waiting.future.set_exception(DeadlineError(f"it passed before {self._name} began"))
        alive = [waiting for waiting in alive if not waiting.future.done()]
        if not alive:
            return
        try:
            results = self._results([waiting.call for waiting in alive])
        except BaseException as error:
            if len(alive) == 1 or not isinstance(error, Exception):
                for waiting in alive:
                    waiting.future.set_exception(error)
            else:
                for waiting in alive:
                    self._run_alone(waiting)
            return
        for waiting, result in zip(alive, results, strict=True):
            waiting.future.set_result(result)

    def _results(self, calls: Sequence[T]) -> Sequence[R]:
        """One result a call; anything else is a fault of the model that no call may be answered with."""
        results = self._run(calls)
        if len(results) != len(calls):
            raise RuntimeError(f"{self._name}: {len(results)} results for {len(calls)} calls")
        return results

    def _run_alone(self, waiting: _Waiting[T, R]) -> None:
        try:
            if waiting.deadline.has_passed:
                raise DeadlineError(f"it passed in {self._name}")
            waiting.future.set_result(self._results([waiting.call])[0])
        except Exception as error:
            waiting.future.set_exception(error)
