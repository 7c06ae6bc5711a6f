"""Sends and receives the chunks of a snapshot, several under way at once, so that neither side waits for the other.

redis-py sends some commands and then waits for their answers; it collects an answer in buffers of its own, joins them
into a new one, and asks for more when it is done with it. Here the next chunk is sent before the last one is answered,
some chunks are always asked for ahead, and each is copied once, from the kernel to where it is written from.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from indexing.redis_connect import Connection
from indexing.redis_parts import Chunk

AHEAD = 3
"""Chunks that are asked for before they can be received."""

BUFFERS = 6
"""One that is received into, the others may be read."""

UNANSWERED = 2
"""Commands that are sent before the answer of the first one is awaited."""


class WrongLengthError(Exception):
    """A chunk is missing, or longer or shorter than its mark says."""


def send(connection: Connection, commands: Iterable[tuple[Any, ...]], between: Callable[[], None]) -> None:
    """Send commands, in order, on a connection of their own.

    Args:
        between: Called after each of them.

    Raises:
        redis.RedisError: Redis failed, or refuses one; what was sent behind it may be in effect or not.
    """
    pool = connection.client.connection_pool
    channel = pool.get_connection()
    unanswered = 0
    try:
        for command in commands:
            channel.send_packed_command(channel.pack_command(*command), check_health=False)
            unanswered += 1
            if unanswered > UNANSWERED:
                channel.read_response()
                unanswered -= 1
            between()
        while unanswered:
            channel.read_response()
            unanswered -= 1
    finally:
        if unanswered:  # answers are still under way
            channel.disconnect()
        pool.release(channel)


def received(connection: Connection, chunks: Sequence[Chunk]) -> Generator[tuple[Chunk, memoryview]]:
    """Yield each chunk with its bytes, which stay until ``BUFFERS - 1`` further ones were yielded.

    Raises:
        WrongLengthError: One is not as its mark says.
        redis.RedisError: Redis failed.
    """
    pool = connection.client.connection_pool
    channel = pool.get_connection()
    is_done = False
    try:
        buffers = [memoryview(bytearray(max(chunk.bytes for chunk in chunks))) for _ in chunks[:BUFFERS]]
        for chunk in chunks[:AHEAD]:
            _ask(channel, chunk)
        for place, chunk in enumerate(chunks):
            content = buffers[place % BUFFERS][: chunk.bytes]
            _receive(channel.limited_socket, chunk, content)
            if place + AHEAD < len(chunks):
                _ask(channel, chunks[place + AHEAD])
            yield chunk, content
        is_done = True
    finally:
        if not is_done:  # answers are still under way
            channel.disconnect()
        pool.release(channel)


def _ask(channel: Any, chunk: Chunk) -> None:
    channel.send_packed_command(channel.pack_command("GET", chunk.key), check_health=False)


def _receive(socket: Any, chunk: Chunk, content: memoryview) -> None:
    """One answer of the protocol: ``$LENGTH``, the bytes, and an end of line after each."""
    import redis

    try:
        socket.begin()
        head = _line(socket)
        if head in (b"$-1", b"_"):
            raise WrongLengthError(f"{chunk.key}: missing, expected {chunk.bytes} bytes")
        if head.startswith(b"-"):
            raise redis.ResponseError(head[1:].decode("utf-8", "replace"))
        if not head.startswith(b"$") or not head[1:].isdigit():
            raise redis.InvalidResponse(f"expected the length of {chunk.key}, got {head[:80]!r}")
        if int(head[1:]) != chunk.bytes:
            raise WrongLengthError(f"{chunk.key}: {int(head[1:])} bytes, expected {chunk.bytes} bytes")
        _fill(socket, content)
        _line(socket)
    except TimeoutError as error:
        raise redis.TimeoutError(str(error)) from error
    except OSError as error:
        raise redis.ConnectionError(str(error)) from error


def _line(socket: Any) -> bytes:
    line, byte = bytearray(), memoryview(bytearray(1))
    while not line.endswith(b"\r\n"):
        _fill(socket, byte)
        line += byte
    return bytes(line[:-2])


def _fill(socket: Any, content: memoryview) -> None:
    place = 0
    while place < len(content):
        count = socket.recv_into(content[place:])
        if not count:
            raise ConnectionError("the connection was closed")
        place += count
