"""Where query towers run: in the thread that asks, or those of several requests together.

Requests share a call that threads work on at the same time (``rank_threads`` above 1), that wait in the same turn of
the event loop (``rank_threads`` 0), or that came in one batch. Whether sharing pays depends on the engine: a call of
many rows costs little more than one of a single row where weights have to be read anyway, while handing rows to another
thread costs as much as a small tower takes, and some engines run two rows slower than one row twice. So it is tried
when a release is loaded, as it would run: in as many threads as rank, or in a turn. Shapes: H heads, D width of a
vector.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from types import TracebackType
from typing import Protocol

import numpy as np

from contracts.encoding import Encoded
from service.batching import Batcher, BatchLimits
from service.deadline import Deadline, DeadlineError
from service.gain import gain_by_turns
from service.releases import LoadedRelease
from service.settings import Settings
from towers.serving import TwoTowerServing

LEAST_GAIN = 1.1
"""So many times more requests a second have to get through for batching to be worth its thread."""
ROUNDS, CALLS_PER_THREAD = 3, 8
IN_A_TURN = 2
"""Requests of one turn at most: each is answered after all of them, and nobody is seen who comes meanwhile."""

TURN_ROUNDS = 15

Row = tuple[TwoTowerServing, Encoded]


class QueryTowers(Protocol):
    """Runs query towers."""

    def embed(
        self, releases: Sequence[LoadedRelease], queries: Sequence[Encoded], deadline: Deadline
    ) -> list[np.ndarray]:
        """The query embedding [H, D+2] of one encoded request by the tower of each release.

        Raises:
            DeadlineError: It passed meanwhile.
            QueueFullError: Too many requests wait.
        """
        ...


class DirectTowers:
    """Runs each in the thread that asks."""

    def embed(
        self, releases: Sequence[LoadedRelease], queries: Sequence[Encoded], deadline: Deadline
    ) -> list[np.ndarray]:
        """As :class:`QueryTowers` says."""
        return [loaded.tower.embed_query(query)[0] for loaded, query in zip(releases, queries, strict=True)]


class BatchedTowers:
    """Runs those of releases for which it pays in the thread of a batcher, the others in the thread that asks.

    Args:
        settings: How calls are put together, and how many threads rank.
        observe: Told of each batch: requests, and seconds that the first of them waited.
        clock: Seconds, by which both ways are tried.
    """

    def __init__(
        self,
        settings: Settings,
        observe: Callable[[int, float], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._choice, self._threads = settings.query_batching, settings.rank_threads
        limits = BatchLimits(
            calls=settings.query_batch,
            rows=settings.query_batch,
            wait_s=settings.query_batch_wait_ms / 1000,
            waiting=settings.query_queue,
        )
        self._limits = limits
        self._batcher: Batcher[Row, np.ndarray] = Batcher(
            "the query tower", embed_together, threads=1, limits=limits, observe=observe
        )
        self._observe, self._clock = observe, clock

    @property
    def in_a_turn(self) -> int:
        """Most requests of one turn of the event loop."""
        return min(self._limits.calls, IN_A_TURN)

    def __enter__(self) -> "BatchedTowers":
        self._batcher.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batcher.__exit__(kind, error, trace)

    def embed(
        self, releases: Sequence[LoadedRelease], queries: Sequence[Encoded], deadline: Deadline
    ) -> list[np.ndarray]:
        """As :class:`QueryTowers` says."""
        if self._threads == 0 or not any(loaded.batches_queries for loaded in releases):
            return DirectTowers().embed(releases, queries, deadline)
        pairs = zip(releases, queries, strict=True)
        waiting = [
            self._batcher.submit(loaded.tower, (loaded.tower, query), rows=1, deadline=deadline)
            for loaded, query in pairs
        ]
        return [_result(future, deadline) for future in waiting]

    def embed_all(
        self, asked: Sequence[tuple[Sequence[LoadedRelease], Sequence[Encoded]]], waited_s: float
    ) -> list[list[np.ndarray]]:
        """Embeddings of several requests in this thread, as ``embed`` gives those of one; a call for each tower.

        Args:
            asked: Releases and queries of each, as ``embed`` takes them.
            waited_s: How long the first of them waited.
        """
        found = [[np.empty(0)] * len(releases) for releases, _ in asked]
        shared: dict[TwoTowerServing, list[tuple[int, int]]] = {}
        for request, (releases, queries) in enumerate(asked):
            for place, (loaded, query) in enumerate(zip(releases, queries, strict=True)):
                if loaded.batches_queries:
                    shared.setdefault(loaded.tower, []).append((request, place))
                else:
                    found[request][place] = loaded.tower.embed_query(query)[0]
        for tower, all_places in shared.items():
            for first in range(0, len(all_places), self._limits.calls):
                places = all_places[first : first + self._limits.calls]
                embeddings = embed_together([(tower, asked[request][1][place]) for request, place in places])
                for (request, place), embedding in zip(places, embeddings, strict=True):
                    found[request][place] = embedding
                self._observe(len(places), waited_s)
        return found

    def pays(self, tower: TwoTowerServing) -> bool:
        """Whether requests for this tower are to share calls, by the settings or by trying both ways."""
        if self._threads == 1 or self._limits.calls < 2 or self._choice == "off":
            return False
        return self._choice == "on" or self.gain(tower) >= LEAST_GAIN

    def gain(self, tower: TwoTowerServing) -> float:
        """How many times faster the ranking threads, or a turn, get through requests when these share calls."""
        encoder = tower.query_encoder
        row = encoder.encode({}, num_rows=1, event_time=np.zeros(1, np.int64), absent="missing").encoded
        if self._threads == 0:
            rows = [(tower, row)] * self.in_a_turn
            return gain_by_turns(
                lambda: [tower.embed_query(row) for _ in rows],
                lambda: embed_together(rows),
                rounds=TURN_ROUNDS,
                clock=self._clock,
            )
        batcher = Batcher("a trial", embed_together, threads=1, limits=self._limits)  # its batches are no requests'

        def shared() -> object:
            return batcher.submit(tower, (tower, row), rows=1, deadline=Deadline()).result()

        with ThreadPoolExecutor(self._threads) as pool, batcher:
            return gain_by_turns(
                lambda: self._in_all_threads(pool, lambda: tower.embed_query(row)),
                lambda: self._in_all_threads(pool, shared),
                rounds=ROUNDS,
                clock=self._clock,
            )

    def _in_all_threads(self, pool: ThreadPoolExecutor, call: Callable[[], object]) -> None:
        """The ranking threads get through several calls each."""
        for future in [pool.submit(_repeat, call) for _ in range(self._threads)]:
            future.result()


def embed_together(rows: Sequence[Row]) -> list[np.ndarray]:
    """Query embeddings [H, D+2] of several requests by the same tower, in one call."""
    tower, queries = rows[0][0], [query for _, query in rows]
    if len(queries) == 1:
        return [tower.embed_query(queries[0])[0]]
    stacked = Encoded(
        np.concatenate([query.ids for query in queries]), np.concatenate([query.floats for query in queries])
    )
    return list(tower.embed_query(stacked))


def _result(future: "Future[np.ndarray]", deadline: Deadline) -> np.ndarray:
    try:
        return future.result(None if deadline.at == inf else max(deadline.remaining_s(), 0.0))
    except TimeoutError:
        future.cancel()
        raise DeadlineError("the deadline passed in the query tower") from None


def _repeat(call: Callable[[], object]) -> None:
    for _ in range(CALLS_PER_THREAD):
        call()
