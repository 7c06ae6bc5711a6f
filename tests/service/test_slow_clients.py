"""Connections that bring no whole header, or do not take their answer, are ended, and no others."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace

import uvicorn

from service.server import _Server
from service.slow_clients import SlowClients


@dataclass(eq=False)
class Connection:
    """As uvicorn keeps it."""

    cycle: object = None
    timeout_keep_alive_task: object = None
    unsent: int = 0
    closed: int = 0
    aborted: int = 0
    transport: object = field(init=False)

    def __post_init__(self):
        self.transport = SimpleNamespace(close=self.close, abort=self.abort, get_write_buffer_size=lambda: self.unsent)

    def close(self):
        self.closed += 1

    def abort(self):
        self.aborted += 1


def test_only_those_that_wait_for_headers_too_long_are_ended():
    now = [0.0]
    timeout, answered = SlowClients(10.0, 60.0, clock=lambda: now[0]), SimpleNamespace(response_complete=True)
    new, resting, asking = (
        Connection(),
        Connection(answered, object()),
        Connection(SimpleNamespace(response_complete=False)),
    )
    slow_again = Connection(answered)
    connections = [new, resting, asking, slow_again]
    assert timeout.look(connections) == 0
    now[0] = 10.0
    assert timeout.look(connections) == 0
    slow_again.cycle = SimpleNamespace(response_complete=True)  # it had its answer in between
    now[0] = 10.1
    assert timeout.look(connections) == 1
    assert [connection.closed for connection in connections] == [1, 0, 0, 0]
    now[0] = 20.2
    assert timeout.look(connections[1:]) == 1
    assert [connection.closed for connection in connections] == [1, 0, 0, 1]
    resting.timeout_keep_alive_task = None
    assert timeout.look([resting]) == 0  # its time begins when it leaves its rest


def test_a_real_server_ends_them_and_goes_on_answering(servers):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with servers.serving(app, server=lambda config: _Server(config, SlowClients(0.3, 60.0))) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, 30) as silent, socket.create_connection(address, 30) as dripping:
            dripping.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert dripping.recv(1 << 16).startswith(b"HTTP/1.1 200")
            dripping.sendall(b"GET / HTTP/1.1\r\nHo")
            assert silent.recv(1) == b""
            assert dripping.recv(1) == b""
        with socket.create_connection(address, 30) as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert other.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_only_those_that_leave_one_answer_unread_too_long_are_ended():
    now = [0.0]
    timeout, answered = SlowClients(60.0, 10.0, clock=lambda: now[0]), SimpleNamespace(response_complete=True)
    unread, underway, next_one, taken = (
        Connection(answered, object(), unsent=1),
        Connection(SimpleNamespace(response_complete=False), unsent=1),
        Connection(answered, object(), unsent=1),
        Connection(answered, object(), unsent=1),
    )
    unopened = Connection()
    unopened.transport = None
    connections = [unread, underway, next_one, taken, unopened]
    assert timeout.look(connections) == 0
    now[0] = 10.0
    next_one.cycle, taken.unsent = SimpleNamespace(response_complete=True), 0
    assert timeout.look(connections) == 0
    now[0], taken.unsent = 10.1, 1
    assert timeout.look(connections) == 2
    assert [connection.aborted for connection in connections] == [1, 1, 0, 0, 0]
    assert not any(connection.closed for connection in connections)


def test_a_client_that_never_reads_holds_neither_descriptor_nor_task(servers):
    """It asks twice: the second answer waits for the first to be read."""
    size, running = 50_000_000, []

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]}
        await send(head)
        await send({"type": "http.response.body", "body": bytes(size)})

    def server(config: uvicorn.Config) -> uvicorn.Server:
        running.append(_Server(config, SlowClients(60.0, 0.3)))
        return running[0]

    with servers.serving(app, server=server) as url:
        state = running[0].server_state
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 30) as client:
            client.sendall(2 * b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            servers.wait_until(lambda: len(state.tasks) == 1)
            servers.wait_until(lambda: not state.connections and not state.tasks)
            assert len(b"".join(taken(client))) < size


def taken(client: socket.socket) -> Iterator[bytes]:
    """What still comes of a connection that the other side has cut."""
    with suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            yield piece
