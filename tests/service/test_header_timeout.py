"""Connections that bring no whole header are ended; what is in a request, or rests after one, is none of them."""

import socket
from dataclasses import dataclass, field
from types import SimpleNamespace

from service.header_timeout import HeaderTimeout
from service.server import _Server


@dataclass(eq=False)
class Connection:
    """As uvicorn keeps it."""

    cycle: object = None
    timeout_keep_alive_task: object = None
    closed: int = 0
    transport: object = field(init=False)

    def __post_init__(self):
        self.transport = SimpleNamespace(close=self.close)

    def close(self):
        self.closed += 1


def test_only_those_that_wait_for_headers_too_long_are_ended():
    now = [0.0]
    timeout, answered = HeaderTimeout(10.0, clock=lambda: now[0]), SimpleNamespace(response_complete=True)
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

    with servers.serving(app, server=lambda config: _Server(config, HeaderTimeout(0.3))) as url:
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
