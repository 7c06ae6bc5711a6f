"""Chunks come whole and in order, or not at all: every answer that a server could give, cut anywhere."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import redis

from indexing.redis_chunks import BUFFERS, WrongLengthError, received, send
from indexing.redis_connect import Connection, connect
from indexing.redis_parts import Chunk


@contextmanager
def giving(answers: bytes, *, then_closed: bool = True) -> Iterator[Connection]:
    """A client whose server answers whatever is asked first with ``answers``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            channel, _ = listener.accept()
            with channel:
                while b"GET" not in (data := channel.recv(1 << 16)):
                    channel.sendall(b"+OK\r\n" * data.count(b"*"))
                channel.sendall(answers)
                if not then_closed:
                    done.wait(20)
                channel.shutdown(socket.SHUT_WR)
                while channel.recv(1 << 16):  # what is left unread at the end would take back the answers
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield connect(f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2")
        done.set()


def test_chunks_are_what_was_stored(make_server: Callable) -> None:
    client = connect(make_server().url)
    rng = np.random.default_rng(0)
    sizes = [1, 1 << 20, 70_000, 3, 2 << 20, 1, 5, 65_536, 2]
    chunks = [Chunk(f"chunk-{number}", 0, 0, size) for number, size in enumerate(sizes)]
    expected = [rng.bytes(size) for size in sizes]
    for chunk, content in zip(chunks, expected, strict=True):
        client.client.set(chunk.key, content)
    kept: list[memoryview] = []
    for number, (chunk, content) in enumerate(received(client, chunks)):
        assert chunk is chunks[number]
        kept.append(content)
        for place in range(max(0, number - BUFFERS + 1), number + 1):
            assert bytes(kept[place]) == expected[place]
        assert client.client.get(chunk.key) == expected[number], "others may ask meanwhile"
    assert len(kept) == len(chunks)
    assert list(received(client, [])) == []


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        (b"$-1\r\n", WrongLengthError, "a: missing, expected 3 bytes"),
        (b"_\r\n", WrongLengthError, "a: missing, expected 3 bytes"),
        (b"$2\r\nxy\r\n", WrongLengthError, "a: 2 bytes, expected 3 bytes"),
        (b"$3\r\nxyz\r\n$4\r\nabcd\r\n", WrongLengthError, "b: 4 bytes, expected 3 bytes"),
        (b"-LOADING Redis is loading\r\n", redis.ResponseError, "LOADING Redis is loading"),
        (b":3\r\n", redis.InvalidResponse, "expected the length of a, got b':3'"),
        (b"$x\r\n", redis.InvalidResponse, r"expected the length of a, got b'\$x'"),
        (b"", redis.ConnectionError, "closed"),
        (b"$3", redis.ConnectionError, "closed"),
        (b"$3\r\nxy", redis.ConnectionError, "closed"),
        (b"$3\r\nxyz\r", redis.ConnectionError, "closed"),
        (b"$3\r\nxyz\r\n", redis.ConnectionError, "closed"),
    ],
)
def test_any_other_answer_is_an_error(answers: bytes, error: type[Exception], message: str) -> None:
    chunks: Sequence[Chunk] = [Chunk("a", 0, 0, 3), Chunk("b", 0, 3, 3)]
    with giving(answers) as client, pytest.raises(error, match=message):
        list(received(client, chunks))


def test_an_answer_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADSIEVE_REDIS_TIMEOUT_S", "0.2")
    with giving(b"$3\r\nx", then_closed=False) as client, pytest.raises(redis.TimeoutError):
        list(received(client, [Chunk("a", 0, 0, 3)]))


def test_commands_are_sent_in_order_and_all_answered(make_server: Callable) -> None:
    client = connect(make_server().url)
    rng = np.random.default_rng(1)
    contents = [rng.bytes(size) for size in (1, 5 << 20, 70_000, 3, 4 << 20, 9)]
    turns: list[int] = []
    commands = [("SET", f"chunk-{place}", memoryview(content)) for place, content in enumerate(contents)]
    send(client, [*commands, ("APPEND", "chunk-0", b"!"), ("EXPIRE", "chunk-3", 100)], lambda: turns.append(1))
    assert len(turns) == len(commands) + 2
    expected = [contents[0] + b"!", *contents[1:]]
    assert client.client.mget([f"chunk-{place}" for place in range(len(contents))]) == expected
    assert 0 < client.client.ttl("chunk-3") <= 100
    send(client, [], lambda: None)


@pytest.mark.parametrize("place", [0, 1, 4, 8])
def test_a_refused_command_is_an_error_and_its_connection_is_given_up(make_server: Callable, place: int) -> None:
    client = connect(make_server().url)
    commands = [("SET", f"chunk-{number}", b"x") for number in range(9)]
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        send(client, [*commands[:place], ("SET", "alone"), *commands[place:]], lambda: None)
    assert client.client.get("alone") is None
    client.client.set("after", b"y")
    assert client.client.get("after") == b"y"


def test_an_error_between_commands_leaves_no_answer_for_the_next_one(make_server: Callable) -> None:
    client = connect(make_server().url)

    def failing() -> None:
        raise ArithmeticError

    for _ in range(3):
        with pytest.raises(ArithmeticError):
            send(client, [("SET", "chunk", b"x"), ("GET", "chunk")], failing)
        assert client.client.get("none") is None
