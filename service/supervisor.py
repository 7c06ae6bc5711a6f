"""Several workers on one socket: one that dies is started again, SIGTERM ends all gracefully, SIGHUP renews them.

uvicorn's own supervisor waits for ever for a worker that does not end, and lets a new worker take connections before it
can answer; here a worker that joins others listens once it is ready (see the lifespans of the applications), and each
wait has a limit.
"""

import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from contracts.errors import AdsieveError
from service.accepting import ABSENT, Balance
from service.counts_directory import COUNTS_PREFIX, held, remove_abandoned
from service.process_state import COUNTS_VARIABLE
from service.server import STUCK_S, ServeOptions, end_with_parent, serve_process

log = logging.getLogger(__name__)

_TICK_S = 0.5
_GRACE_S = STUCK_S + 1.0
"""Beyond the limits that a worker keeps itself: one that is stuck tells where, and ends, before it is killed."""
_LONG_ENOUGH_S = 30.0
"""A worker that lived longer is started again at once, another after a pause that doubles."""
_PAUSES_S = (0.1, 30.0)
"""The first and the longest."""


@dataclass(kw_only=True)
class _Worker:
    """``tells`` gives one message once it listens; ``replaces`` then stops. ``place`` is its own among the numbers of
    open connections. Moments are monotonic."""

    process: SpawnProcess
    place: int
    tells: Connection
    began: float
    replaces: "_Worker | None" = None
    listens: bool = False
    ends_by: float | None = None


class Supervisor:
    """Keeps a number of workers alive.

    Args:
        options: What each worker is made from; sent to it through a pipe.
        listener: Bound. Workers listen on it; it is closed here when the service stops.
        num_workers: At least 1.
    """

    def __init__(self, options: ServeOptions, listener: socket.socket, num_workers: int) -> None:
        self._options, self._listener, self._num_workers = options, listener, num_workers
        settings = options.settings
        self._patience_s = settings.shutdown_s + settings.drain_s + _GRACE_S
        self._context = multiprocessing.get_context("spawn")
        self._connections = self._context.RawArray(
            "q", [ABSENT] * (2 * num_workers)
        )  # each may have one that follows it
        self._workers: list[_Worker] = []
        self._to_renew: list[_Worker] = []
        self._stops, self._renews, self._has_listened = False, False, False
        self._pause_s, self._not_before = 0.0, 0.0

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            AdsieveError: A worker ended before any had begun to listen; its log says why.
        """
        with _signals(self._on_signal) as woken:
            try:
                while not self._stops:
                    self._fill_up()
                    self._wait(woken)
                    self._listen_to_workers()
                    self._bury()
                    self._renew()
            finally:
                self._end_all(woken)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._renews = True
        else:
            self._stops = True

    def _fill_up(self) -> None:
        staying = sum(worker.ends_by is None and worker.replaces is None for worker in self._workers)
        if staying < self._num_workers and time.monotonic() >= self._not_before:
            for _ in range(self._num_workers - staying):
                self._start()

    def _start(self, replaces: "_Worker | None" = None) -> None:
        tells, telling = self._context.Pipe(duplex=False)
        taken = {worker.place for worker in self._workers}
        place = next(place for place in range(len(self._connections)) if place not in taken)
        given = (self._options, self._listener, telling, self._connections, place)
        process = self._context.Process(target=_work, args=given, name="adsieve worker")
        process.start()
        telling.close()
        log.info("worker %s begins", process.pid)
        began = time.monotonic()
        self._workers.append(_Worker(process=process, place=place, tells=tells, began=began, replaces=replaces))

    def _wait(self, woken: socket.socket) -> None:
        news = [worker.process.sentinel for worker in self._workers]
        tells = [worker.tells for worker in self._workers if not worker.listens]
        if woken in wait([*news, *tells, woken], _TICK_S):
            woken.recv(4096)

    def _listen_to_workers(self) -> None:
        for worker in self._workers:
            if not worker.listens and worker.tells.poll():
                try:
                    worker.tells.recv()
                except EOFError:  # it died, as its sentinel tells
                    continue
                worker.listens = self._has_listened = True
                if worker.replaces is not None:
                    self._end(worker.replaces)
                    worker.replaces = None

    def _bury(self) -> None:
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._workers.remove(worker)
            self._connections[worker.place] = ABSENT
            worker.process.join()
            worker.tells.close()
            if worker.ends_by is None:
                self._note_death(worker)
        for worker in self._workers:
            if worker.ends_by is not None and time.monotonic() > worker.ends_by:
                log.error("worker %s does not end, it is killed", worker.process.pid)
                worker.process.kill()

    def _note_death(self, worker: _Worker) -> None:
        code = worker.process.exitcode
        if not self._has_listened:
            raise AdsieveError(f"a worker ended with {code} before it listened, see its log")
        log.error("worker %s ended with %s", worker.process.pid, code)
        if worker.replaces is not None:
            log.error("the workers are not renewed: a new one did not begin")
            self._to_renew = []
            return
        for new in self._workers:
            if new.replaces is worker:
                new.replaces = None
                return
        lived_long = time.monotonic() - worker.began > _LONG_ENOUGH_S
        first, longest = _PAUSES_S
        self._pause_s = 0.0 if lived_long else min(max(2 * self._pause_s, first), longest)
        self._not_before = time.monotonic() + self._pause_s

    def _renew(self) -> None:
        """Let a new worker take the place of each that is here now, one after another."""
        if self._renews:
            self._renews = False
            self._to_renew = [worker for worker in self._workers if worker.ends_by is None and worker.replaces is None]
        is_underway = any(worker.replaces is not None or worker.ends_by is not None for worker in self._workers)
        while self._to_renew and not is_underway:
            old = self._to_renew.pop(0)
            if old in self._workers:
                self._start(replaces=old)
                return

    def _end(self, worker: _Worker) -> None:
        worker.ends_by = time.monotonic() + self._patience_s
        if worker.process.is_alive():
            worker.process.terminate()

    def _end_all(self, woken: socket.socket) -> None:
        """New connections are refused once the last process has closed the socket."""
        self._listener.close()
        self._has_listened, self._stops = True, False
        for worker in self._workers:
            self._end(worker)
        while self._workers:
            self._wait(woken)
            if self._stops:  # told a second time
                self._stops = False
                for worker in self._workers:
                    worker.process.terminate()
            self._bury()


@contextmanager
def shared_counts() -> Iterator[None]:
    """A private directory in which the workers that begin meanwhile share what they count; gone at the end.

    What a supervisor left that was killed is removed first.
    """
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=COUNTS_PREFIX, ignore_cleanup_errors=True) as directory:
        os.environ[COUNTS_VARIABLE] = directory
        with held(Path(directory)):
            try:
                yield
            finally:
                del os.environ[COUNTS_VARIABLE]


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[socket.socket]:
    """Have signals handled; what is yielded becomes readable when one comes."""
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        handlers = {number: signal.signal(number, handler) for number in handled}
        try:
            yield reading
        finally:
            for number, former in handlers.items():
                signal.signal(number, former)
            signal.set_wakeup_fd(before)


def _work(
    options: ServeOptions,
    listener: socket.socket,
    telling: Connection,
    connections: MutableSequence[int],
    place: int,
) -> None:
    """What a worker's process does. A signal of the terminal reaches it too: only the supervisor's SIGTERM counts."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        end_with_parent(lambda: wait([parent.sentinel]))
    os.setpgid(0, 0)
    serve_process(options, listener, lambda: telling.send(True), Balance(connections, place))
