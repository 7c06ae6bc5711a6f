"""What is refused before it begins gets the application's own bytes, and its connection goes on as after any answer."""

import asyncio
import logging
import re
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest
import uvicorn
from starlette.responses import Response

from service.app import create_app
from service.early_refusals import EarlyRefusals

BODY = b"a" * 100_000
HEAD = b"POST /rank HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % len(BODY)
PLAIN = HEAD + b"\r\n" + BODY
REFUSED = b'{"refused": true}'


@dataclass
class Host:
    """An application that answers with the length of the body, or refuses, as it is told; ``asked`` counts both."""

    port: int = 0
    refuses: bool = True
    early: int = 0
    asked: list[str] = field(default_factory=list)
    slow_s: float = 0.0
    server: uvicorn.Server | None = None
    fails: bool = False

    def refusal(self) -> Response | None:
        if self.fails:
            raise RuntimeError("cannot tell")
        if not self.refuses:
            return None
        self.early += 1
        return Response(REFUSED, 503, {"Retry-After": "7"}, "application/problem+json")

    async def app(self, scope, receive, send) -> None:
        self.asked.append(scope["method"])
        if self.refuses and scope["method"] == "POST":
            await Response(REFUSED, 503, {"Retry-After": "7"}, "application/problem+json")(scope, receive, send)
            return
        length, more = 0, True
        while more:
            message = await receive()
            length, more = length + len(message.get("body", b"")), message.get("more_body", False)
        await asyncio.sleep(self.slow_s)
        await Response(str(length))(scope, receive, send)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)


@pytest.fixture
def host(servers) -> Iterator[Host]:
    made = Host()

    def server(config: uvicorn.Config) -> uvicorn.Server:
        protocol = partial(EarlyRefusals, refusals={b"/rank": made.refusal})
        made.server = uvicorn.Server(
            uvicorn.Config(made.app, interface="asgi3", log_level="warning", http=protocol, timeout_keep_alive=1)
        )
        return made.server

    with servers.serving(made.app, server=server) as url:
        made.port = int(url.rpartition(":")[2])
        yield made


def answers(connection: socket.socket, count: int = 1) -> list[bytes]:
    """So many whole answers, without the moment that they tell."""
    found, got = [], b""
    while len(found) < count:
        head, end, rest = got.partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1]) if end else 0
        if end and len(rest) >= length:
            found.append(re.sub(rb"date: [^\r]*\r\n", b"", head) + end + rest[:length])
            got = rest[length:]
            continue
        more = connection.recv(1 << 16)
        assert more, got
        got += more
    assert got == b""
    return found


def test_it_is_what_the_application_answers_to_the_byte(host):
    with host.connect() as connection:
        connection.sendall(PLAIN)
        early = answers(connection)
        assert (host.early, host.asked) == (1, [])
        connection.sendall(HEAD + b"Expect: 100-continue\r\n\r\n")  # that one is left to the application
        late = answers(connection)
        assert (host.early, host.asked) == (1, ["POST"])
    assert early == late
    assert early[0].startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert early[0].endswith(REFUSED)


def test_a_connection_goes_on_after_it_whether_the_body_comes_at_once_in_pieces_or_with_the_next_request(host):
    with host.connect() as connection:
        for start in range(0, len(PLAIN), 30_000):
            connection.sendall(PLAIN[start : start + 30_000])
            time.sleep(0.02)
        connection.sendall(PLAIN + PLAIN)
        refused = answers(connection, 3)
        assert (len({*refused}), host.early + len(host.asked)) == (1, 3)
        assert host.early >= 2  # of two that come in one read the second is the application's
        host.refuses = False
        connection.sendall(PLAIN)
        assert answers(connection)[0].endswith(b"100000")
        host.refuses = True
        connection.sendall(PLAIN)
        assert answers(connection) == refused[:1]


def test_what_comes_behind_a_request_in_flight_is_answered_after_it(host):
    host.refuses, host.slow_s = False, 0.3
    with host.connect() as connection:
        connection.sendall(PLAIN)
        time.sleep(0.1)
        host.refuses = True
        connection.sendall(PLAIN)
        first, second = answers(connection, 2)
    assert first.endswith(b"100000")
    assert second.endswith(REFUSED)
    assert (host.early, host.asked) == (0, ["POST", "POST"])


@pytest.mark.parametrize(
    "head",
    [
        b"GET /rank HTTP/1.1\r\nHost: a\r\n",
        b"POST /rank/ HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n",
        b"POST /rank?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n",
        b"POST /r%61nk HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n",
        b"POST http://a/rank HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n",
        b"POST /rank HTTP/1.0\r\nHost: a\r\nContent-Length: 0\r\n",
        b"POST /rank HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n",
        b"POST /rank HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n",
        b"POST /rank HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_what_is_not_plainly_such_a_request_is_the_applications(host, head):
    with host.connect() as connection:
        connection.sendall(head + b"\r\n")
        answers(connection)
    assert (host.early, len(host.asked)) == (0, 1)


def test_a_body_that_is_no_http_gets_one_answer(host):
    with host.connect() as connection:
        connection.sendall(b"POST /rank HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n")
        told = b""
        while more := connection.recv(1 << 16):
            told += more
    assert told.startswith(b"HTTP/1.1 400 ")
    assert told.count(b"HTTP/1.1") == 1
    assert host.early == 0


def test_a_connection_rests_no_longer_than_others_whatever_its_body_does(host):
    with host.connect() as connection:
        connection.sendall(PLAIN[:50_000])
        assert answers(connection)[0].endswith(REFUSED)
        connection.sendall(PLAIN[50_000:])
        began = time.monotonic()
        assert connection.recv(1) == b""
        assert 0.5 < time.monotonic() - began < 20


def test_what_came_in_one_read_with_it_may_take_longer_than_a_connection_may_rest(host):
    host.slow_s = 2.5
    refused = b"POST /rank HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    with host.connect() as connection:
        connection.sendall(refused + b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        first, second = answers(connection, 2)
    assert (host.early, host.asked) == (1, ["GET"])
    assert first.endswith(REFUSED)
    assert second.endswith(b"\r\n\r\n0")


def test_of_many_requests_in_one_read_the_first_is_refused_so_that_others_have_their_turn(host):
    refused = b"POST /rank HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    with host.connect() as connection:
        connection.sendall(refused * 20)
        assert len({*answers(connection, 20)}) == 1
        assert (host.early, len(host.asked)) == (1, 19)
        connection.sendall(refused)
        answers(connection)
    assert host.early == 2


def test_where_asking_fails_the_application_answers(host):
    host.fails, host.refuses = True, False
    with host.connect() as connection:
        connection.sendall(PLAIN)
        assert answers(connection)[0].endswith(b"100000")
        host.fails, host.refuses = False, True
        connection.sendall(PLAIN)
        assert answers(connection)[0].endswith(REFUSED)
    assert (host.early, host.asked) == (1, ["POST"])


def test_there_may_be_room_before_its_body_has_come(host):
    with host.connect() as connection:
        connection.sendall(PLAIN[: -len(BODY)])
        assert answers(connection)[0].endswith(REFUSED)
        host.refuses = False
        for byte in BODY[:100]:
            connection.sendall(bytes([byte]))
        connection.sendall(BODY[100:] + PLAIN)
        assert answers(connection)[0].endswith(b"100000")
    assert (host.early, host.asked) == (1, ["POST"])


def test_a_caller_that_sends_no_more_gets_it_whole(host):
    for sent in (PLAIN, PLAIN[:50_000]):
        with host.connect() as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert answers(connection)[0].endswith(REFUSED)
            assert connection.recv(1) == b""


def test_callers_that_break_off_leave_nothing_behind(host, servers, caplog):
    for cut in (10, len(HEAD) + 1, len(HEAD) + 2, 50_000, len(PLAIN), len(PLAIN) + 10, 2 * len(PLAIN)):
        for heard in (0, 1):
            with host.connect() as connection:
                connection.sendall((PLAIN + PLAIN)[:cut])
                if heard and cut > len(HEAD) + 1:
                    connection.recv(1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    state = host.server.server_state
    servers.wait_until(lambda: not state.connections and not state.tasks)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]
    with host.connect() as connection:
        connection.sendall(PLAIN)
        assert answers(connection)[0].endswith(REFUSED)


def test_a_server_that_stops_waits_for_no_body_of_what_was_refused(host, servers):
    with host.connect() as resting, host.connect() as sending:
        for connection, sent in ((resting, PLAIN), (sending, PLAIN[:50_000])):
            connection.sendall(sent)
            assert answers(connection)[0].endswith(REFUSED)
        sending.sendall(PLAIN[50_000:50_001])
        connections = host.server.server_state.connections
        servers.wait_until(lambda: any(one.timeout_keep_alive_task is None for one in [*connections]))
        host.server.should_exit = True
        assert resting.recv(1) == b""
        assert sending.recv(1) == b""


def test_the_service_counts_it_as_any_other(settings, servers):
    app = create_app(settings.model_copy(update={"max_in_flight": 1, "retry_after_s": 7, "rank_threads": 0}))

    def server(config: uvicorn.Config) -> uvicorn.Server:
        protocol = partial(EarlyRefusals, refusals=app.state.refusals)
        return uvicorn.Server(uvicorn.Config(app, log_level="warning", http=protocol))

    with servers.serving(app, server=server) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 30) as first:
            first.sendall(PLAIN[:-1])  # its body is being read: the only place is taken
            time.sleep(0.2)
            for path in (b"/rank", b"/rank/batch"):
                with socket.create_connection(("127.0.0.1", port), 30) as second:
                    second.sendall(PLAIN.replace(b"/rank", path))
                    (refused,) = answers(second)
                head, _, body = refused.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503")
                assert b"\r\nretry-after: 7" in head
                problem = msgspec.json.decode(body)
                assert problem["type"] == "urn:adsieve:problem:overloaded"
                assert problem["detail"].startswith("requests in flight: 1,")
            first.sendall(PLAIN[-1:])
            assert answers(first)[0].startswith(b"HTTP/1.1 4")
        with socket.create_connection(("127.0.0.1", port), 30) as third:
            third.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            (text,) = answers(third)
        assert b'adsieve_problems_total{kind="overloaded"} 2.0' in text
        assert b'adsieve_rank_requests_total{status="503"} 2.0' in text
