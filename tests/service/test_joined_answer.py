"""The head of an answer travels with what follows it; all that callers are sent is as it was."""

import socket
from collections.abc import Iterator

import pytest
import uvicorn

from service.header_limit import LimitedHeaders
from service.joined_answer import JoinedAnswer


class Transport:
    """Keeps what is written."""

    def __init__(self):
        self.written, self.closed = [], False

    def write(self, data):
        self.written.append(bytes(data))

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


def test_the_head_waits_for_the_first_piece_alone():
    transport = Transport()
    joined = JoinedAnswer(transport)
    joined.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    joined.write(b"HTTP/1.1 200 OK\r\n\r\n")
    assert transport.written[1:] == []
    for piece in (b"one", b"two", b""):
        joined.write(piece)
    assert transport.written[1:] == [b"HTTP/1.1 200 OK\r\n\r\none", b"two", b""]
    joined.close()
    assert joined.is_closing()
    assert len(transport.written) == 4


def test_a_connection_that_ends_after_the_head_sends_it():
    transport = Transport()
    joined = JoinedAnswer(transport)
    joined.write(b"HTTP/1.1 200 OK\r\n\r\n")
    joined.close()
    assert (transport.written, transport.closed) == ([b"HTTP/1.1 200 OK\r\n\r\n"], True)
    unused = JoinedAnswer(Transport())
    unused.close()
    assert unused.is_closing()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_nothing_is_written_once_the_caller_left(written):
    """uvloop would raise: it closes a connection that broke before it tells the protocol so."""
    transport = Transport()
    joined = JoinedAnswer(transport)
    for piece in range(4):
        if piece == written:
            transport.closed = True
        joined.write(b"piece")
    joined.close()
    assert transport.written == [b"piecepiece"] * (written == 2)


async def app(scope, receive, send):
    """Answers by the path: an empty body, pieces, an error after the head; else the body that it got."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    path = scope["path"]
    length = {"/empty": b"0", "/pieces": None, "/broken": b"5"}.get(path, b"%d" % len(body))
    headers = [] if length is None else [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if path == "/broken":
        raise ValueError("an application that breaks off")
    if path == "/pieces":
        for piece in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": b"" if path == "/empty" else body})


@pytest.fixture(scope="module")
def address(servers) -> Iterator[tuple[str, int]]:
    def joined(config: uvicorn.Config) -> uvicorn.Server:
        config = uvicorn.Config(config.app, log_level="critical", http=LimitedHeaders, date_header=False)
        config.server_header = False
        return uvicorn.Server(config)

    with servers.serving(app, server=joined) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def asked(address: tuple[str, int], request: bytes, *then: tuple[bytes, bytes]) -> bytes:
    """What comes back until the connection ends; each of ``then`` is waited for, and then sent."""
    with socket.create_connection(address, 30) as connection:
        connection.sendall(request)
        found = b""
        for awaited, part in then:
            while awaited not in found:
                found += connection.recv(1 << 16)
            connection.sendall(part)
        while got := connection.recv(1 << 16):
            found += got
        return found


HEAD = b"HTTP/1.1 200 OK\r\n"
LAST = b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (
            b"POST /body" + LAST + b"Content-Length: 3\r\n\r\nabc",
            HEAD + b"content-length: 3\r\nconnection: close\r\n\r\nabc",
        ),
        (b"GET /empty" + LAST + b"\r\n", HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n"),
        (b"HEAD /body" + LAST + b"\r\n", HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n"),
        (b"GET /broken" + LAST + b"\r\n", HEAD + b"content-length: 5\r\nconnection: close\r\n\r\n"),
        (
            b"GET /pieces" + LAST + b"\r\n",
            HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n",
        ),
    ],
)
def test_answers_are_whole(address, request_, answer):
    assert asked(address, request_) == answer


def test_a_caller_that_waits_to_be_told_to_go_on_is_told(address):
    request = b"POST /body" + LAST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    found = asked(address, request, (b"HTTP/1.1 100 Continue\r\n\r\n", b"abc"))
    assert found.partition(b"\r\n\r\n")[2] == HEAD + b"content-length: 3\r\nconnection: close\r\n\r\nabc"
