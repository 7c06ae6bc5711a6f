"""Headers that never end are cut off; all that callers send is not."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
import uvicorn

from service.header_limit import MAX_BYTES, LimitedHeaders

REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\n"


async def app(scope, receive, send):
    """Answers with the length of the body."""
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    told = b"%d" % length
    headers = [(b"content-length", b"%d" % len(told))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": told})


@pytest.fixture(scope="module")
def address(servers) -> Iterator[tuple[str, int]]:
    def limited(config: uvicorn.Config) -> uvicorn.Server:
        return uvicorn.Server(uvicorn.Config(config.app, log_level="warning", http=LimitedHeaders))

    with servers.serving(app, server=limited) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def sent(address: tuple[str, int], *parts: bytes) -> bytes:
    """What comes back until the connection ends."""
    with socket.create_connection(address, 30) as connection:
        with contextlib.suppress(ConnectionError):  # it may end while there is more to send
            for part in parts:
                connection.sendall(part)
        found = b""
        with contextlib.suppress(ConnectionError):
            while got := connection.recv(1 << 16):
                found += got
        return found


@pytest.mark.parametrize("piece", [b"X-A: " + b"a" * 1000 + b"\r\n", b"a" * 1000, b"\r\n" * 500], ids=repr)
def test_headers_that_do_not_end_are_cut_off(address, piece):
    begin = b"" if piece.strip() == b"" else REQUEST + b"X-B: "
    answer = sent(address, begin, *[piece] * (40 * MAX_BYTES // len(piece)))
    assert not answer.startswith(b"HTTP/1.1 200")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_trailers_that_do_not_end_are_cut_off(address):
    begin = REQUEST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    assert not sent(address, begin, *[b"X-A: " + b"a" * 1000 + b"\r\n"] * 2_000).startswith(b"HTTP/1.1 200")


def test_long_bodies_and_many_requests_of_one_connection_are_answered(address):
    size = 20 * MAX_BYTES
    whole = REQUEST + b"Content-Length: %d\r\n\r\n" % size + b"a" * size
    chunks = REQUEST + b"Transfer-Encoding: chunked\r\n\r\n" + b"8\r\naaaaaaaa\r\n" * 20_000 + b"0\r\n\r\n"
    small = (REQUEST + b"X-A: " + b"a" * 50_000 + b"\r\nContent-Length: 0\r\n\r\n") * 10
    last = REQUEST + b"Connection: close\r\nContent-Length: 0\r\n\r\n"
    answer = sent(address, whole, chunks, small, last)
    lengths = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
    assert lengths == [b"%d" % size, b"160000", *[b"0"] * 11]
