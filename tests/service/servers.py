"""Servers for tests: a real one of an application, and ones that answer every connection with given bytes."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn


@contextmanager
def serving(app, server: Callable[[uvicorn.Config], uvicorn.Server] = uvicorn.Server) -> Iterator[str]:
    """A real server of an application in a thread; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.02)


def http(status: int, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {status} Told", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _request(connection: socket.socket) -> bytes:
    """The bytes of one whole request."""
    asked = b""
    while b"\r\n\r\n" not in asked:
        asked += connection.recv(1 << 20)
    head, _, body = asked.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
    while len(body) < length:
        body += connection.recv(1 << 20)
    return head + b"\r\n\r\n" + body


@dataclass
class Canned:
    """A host that answers one connection after another with given bytes, the last of them for ever; None: never."""

    url: str
    asked: list[bytes] = field(default_factory=list)


@contextmanager
def canned(*answers: bytes | Sequence[bytes] | None) -> Iterator[Canned]:
    """Such a host. A list of bytes comes in pieces, 50 ms apart."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, connections = Canned(f"http://127.0.0.1:{listener.getsockname()[1]}"), []

    def answer(connection: socket.socket, pieces: bytes | Sequence[bytes]) -> None:
        with contextlib.suppress(OSError), connection:
            host.asked.append(_request(connection))
            for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                connection.sendall(piece)
                time.sleep(0 if isinstance(pieces, bytes) else 0.05)

    def run() -> None:
        for number in range(1_000_000):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            pieces = answers[min(number, len(answers) - 1)]
            if pieces is not None:
                threading.Thread(target=answer, args=(connection, pieces), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()
    try:
        yield host
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        listener.close()
        for connection in connections:
            connection.close()
