"""Connections fall evenly on the processes that share a socket, whatever became of one of them."""

import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.accepting import ABSENT, PATIENCE_S, STEP_S, Balance, waiting_at

PLACES = 3
ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
DIGITS = 9
"""Of a process id in an answer."""
PROCESS = """
import mmap, os, socket, sys
import uvicorn
from service.accepting import Balance
from service.server import _Server
from service.slow_clients import SlowClients

async def app(scope, receive, send):
    if scope["type"] == "http":
        text = b"%9d" % os.getpid()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

listener, path, place = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])
with open(path, "r+b") as file:
    counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_keep_alive=60, access_log=False)
_Server(config, SlowClients(60.0, 60.0), Balance(counts, place)).run(sockets=[listener])
"""


class Crew:
    """Processes on one socket, as the supervisor starts them."""

    def __init__(self, directory: Path) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._path = directory / "counts"
        self._path.write_bytes(8 * PLACES * b"\xff")
        with self._path.open("r+b") as file:
            self.counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.processes: dict[int, subprocess.Popen] = {}

    def start(self, place: int) -> int:
        """Its process id."""
        number = self._listener.fileno()
        command = [sys.executable, "-c", PROCESS, str(number), str(self._path), str(place)]
        self.processes[place] = subprocess.Popen(command, pass_fds=[number])
        return self.processes[place].pid

    def kill(self, place: int) -> None:
        process = self.processes.pop(place)
        process.kill()
        process.wait()
        self.counts[place] = ABSENT

    def held(self) -> int:
        """Connections of all that live."""
        return sum(max(count, 0) for count in self.counts)

    def is_even(self) -> bool:
        return max(self.counts) - min(self.counts) <= 1

    def close(self) -> None:
        for place in list(self.processes):
            self.kill(place)
        self._listener.close()


@pytest.fixture
def crew(tmp_path: Path, servers) -> Iterator[Crew]:
    """Three processes."""
    crew = Crew(tmp_path)
    try:
        for place in range(PLACES):
            crew.start(place)
        servers.wait_until(lambda: list(crew.counts) == [0] * PLACES)
        yield crew
    finally:
        crew.close()


class Clients:
    """Connections to a crew, opened one after another.

    On a busy machine one may come late to the process that has fewest, and the next ones make up for it.
    """

    def __init__(self, crew: Crew, wait_until: Callable[[Callable[[], bool]], None], stack: ExitStack) -> None:
        self._crew, self._wait_until, self._stack = crew, wait_until, stack

    def open(self, count: int) -> list[socket.socket]:
        """More of them, each once the one before was taken."""
        opened = []
        for _ in range(count):
            before = self._crew.held()
            opened += self.send(1)
            self._wait_until(lambda before=before: self._crew.held() > before)
        return opened

    def open_even(self, count: int) -> list[socket.socket]:
        """The same, and up to six more where some came late."""
        opened = self.open(count)
        while not self._crew.is_even() and len(opened) < count + 6:
            opened += self.open(1)
        assert self._crew.is_even(), list(self._crew.counts)
        return opened

    def send(self, count: int) -> list[socket.socket]:
        """More of them, whoever takes them and when."""
        return [self._stack.enter_context(socket.create_connection(self._crew.address, 60)) for _ in range(count)]


@pytest.fixture
def clients(crew: Crew, servers) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(crew, servers.wait_until, stack)


def process_of(connection: socket.socket) -> int:
    connection.sendall(ASK)
    return answered(connection)


def answered(connection: socket.socket) -> int:
    """The process id in the answer that comes."""
    text = b""
    while len(text.partition(b"\r\n\r\n")[2]) < DIGITS:
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionError(f"it ended after {text!r}")
        text += piece
    return int(text[-DIGITS:])


def shares(opened: list[socket.socket]) -> Counter[int]:
    return Counter(map(process_of, opened))


def test_each_gets_as_many_as_the_others(crew, clients, servers):
    for count in (9, 64):
        opened = clients.open_even(count)
        found = shares(opened)
        assert sorted(found.values()) == sorted(crew.counts)
        assert sorted(found) == sorted(process.pid for process in crew.processes.values())
        for connection in opened:
            connection.close()
        servers.wait_until(lambda: list(crew.counts) == [0] * PLACES)


def test_others_take_all_while_one_is_stopped_and_it_catches_up(crew, clients):
    stopped = crew.processes[0].pid
    os.kill(stopped, signal.SIGSTOP)
    first = clients.open(40)
    assert set(shares(first)) == {process.pid for place, process in crew.processes.items() if place}
    os.kill(stopped, signal.SIGCONT)
    clients.open_even(50)


def test_what_the_killed_held_does_not_count(crew, clients, servers):
    clients.open_even(30)
    crew.kill(0)
    assert set(shares(clients.open(30))) == {process.pid for process in crew.processes.values()}
    new = crew.start(0)
    servers.wait_until(lambda: crew.counts[0] == 0)
    last = clients.open_even(26)
    assert shares(last)[new] == crew.counts[0] >= 20


def test_what_nobody_has_taken_when_all_are_told_to_stop_is_answered(crew, clients):
    opened = clients.open(12)
    for process in crew.processes.values():
        os.kill(process.pid, signal.SIGSTOP)
    opened += clients.send(12)
    for connection in opened:
        connection.sendall(ASK)
    for process in crew.processes.values():
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
    found = Counter(map(answered, opened))
    assert found.keys() <= {process.pid for process in crew.processes.values()}
    assert [process.wait(30) for process in crew.processes.values()] == [-signal.SIGTERM] * PLACES
    assert list(crew.counts) == [ABSENT] * PLACES


def test_a_process_that_may_open_no_more_files_leaves_them_to_the_others(crew, clients, servers):
    pid = crew.processes[0].pid
    taken = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(usual[0])) - taken), usual[1]))
    assert pid not in shares(clients.open(40))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
    servers.wait_until(lambda: crew.counts[0] == 0)
    clients.open_even(40)


def test_a_connection_is_left_to_a_sibling_with_fewer_for_a_while_only():
    now, counts = [0.0], [3, 2, ABSENT, 3]
    balance = Balance(counts, 0, clock=lambda: now[0])

    def waited() -> float:
        """Until the connection that waits is ours."""
        start = now[0]
        while not balance.ours(1):
            now[0] += STEP_S / 8
        return now[0] - start

    assert waited() == pytest.approx(PATIENCE_S)
    assert sum(waited() for _ in range(10)) == pytest.approx(PATIENCE_S * (1 / 2 + 1 / 4 + 1 / 8 + 1 / 16))
    counts[1] = 1
    assert waited() == pytest.approx(PATIENCE_S)  # it did something
    counts[1] = 3
    assert waited() == 0
    counts[0] = 4
    now[0] += 1.0
    assert not balance.ours(1)
    now[0] += PATIENCE_S
    balance.was_taken()
    assert waited() == pytest.approx(PATIENCE_S, abs=STEP_S)
    balance.leave()
    assert counts == [ABSENT, 3, ABSENT, 3]


def test_of_many_that_wait_each_takes_what_it_lacks():
    counts = [4, 0, ABSENT, 1]
    taken = []
    for place in (0, 1, 3):
        taken.append(Balance(counts, place).ours(13 - sum(taken)))
        counts[place] += taken[-1]
    assert taken == [2, 6, 5]
    assert counts == [6, 6, ABSENT, 6]


def test_a_listening_socket_tells_how_many_wait():
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener, ExitStack() as stack:
        for count in range(1, 5):
            stack.enter_context(socket.create_connection(listener.getsockname()))
            assert waiting_at(listener) == count
        listener.accept()[0].close()
        assert waiting_at(listener) == 3
    assert waiting_at(listener) == 1  # closed: it is not told
