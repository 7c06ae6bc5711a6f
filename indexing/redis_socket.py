"""A limit on how long a whole answer of Redis may take, however busily its bytes drip in.

redis-py limits each wait for some bytes. Behind a proxy that lets a byte through now and then an answer of 8 MiB would
take months; whoever waits for it holds the mirror's lock meanwhile.
"""

import time
from typing import Any


class LimitedSocket:
    """A socket that gives up once what was asked is not answered whole within a limit.

    Args:
        socket: What it stands for; everything else is passed on.
        limit_s: From the last byte that was sent on.
    """

    def __init__(self, socket: Any, limit_s: float) -> None:
        self._socket, self._limit_s = socket, limit_s
        self._deadline = time.monotonic() + limit_s

    def begin(self) -> None:
        """Grant the whole limit to the answer that is received next."""
        self._deadline = time.monotonic() + self._limit_s

    def sendall(self, data: Any) -> None:
        self._socket.sendall(data)
        self.begin()

    def recv(self, *arguments: Any) -> bytes:
        self._check()
        return bytes(self._socket.recv(*arguments))

    def recv_into(self, *arguments: Any) -> int:
        self._check()
        return int(self._socket.recv_into(*arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def _check(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError(f"the whole answer took longer than {self._limit_s:g} s")


def limited(connection: type[Any], limit_s: float) -> type[Any]:
    """A kind of redis-py's connections, whose socket, ``limited_socket``, has this limit."""

    def connect(self: Any) -> LimitedSocket:
        answer_s, connect_s = self.socket_timeout, getattr(self, "socket_connect_timeout", None)
        self.socket_timeout = answer_s if connect_s is None else min(answer_s, connect_s)  # holds for TLS's handshake
        try:
            socket = connection._connect(self)
        finally:
            self.socket_timeout = answer_s
        socket.settimeout(answer_s)
        self.limited_socket = LimitedSocket(socket, limit_s)
        return self.limited_socket

    return type(f"Limited{connection.__name__}", (connection,), {"_connect": connect})
