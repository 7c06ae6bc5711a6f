"""What a caller sends ahead is read as it is answered, and all of it is answered."""

import socket
import threading
from functools import partial

import uvicorn
from starlette.requests import Request
from starlette.responses import Response

from service.early_refusals import EarlyRefusals

COUNT, BODY = 2_000, b"a" * 1_000
REQUEST = b"POST /any HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
A_READ = 256 << 10


def test_of_requests_sent_ahead_no_more_wait_than_come_in_one_read(servers):
    running, waiting = [], []

    async def app(scope, receive, send):
        waiting.extend(len(connection.pipeline) for connection in running[0].server_state.connections)
        body = await Request(scope, receive).body()
        await Response(str(len(body)))(scope, receive, send)

    def server(config: uvicorn.Config) -> uvicorn.Server:
        protocol = partial(EarlyRefusals, refusals={})
        running.append(
            uvicorn.Server(uvicorn.Config(app, interface="asgi3", lifespan="off", log_level="warning", http=protocol))
        )
        return running[0]

    with (
        servers.serving(app, server=server) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 30) as caller,
    ):
        sender = threading.Thread(target=caller.sendall, args=(COUNT * REQUEST,))
        sender.start()
        told = b""
        while told.count(b"\r\n\r\n%d" % len(BODY)) < COUNT:
            piece = caller.recv(1 << 20)
            assert piece
            told += piece
        sender.join()
    assert told.count(b"HTTP/1.1 200 ") == COUNT
    assert 1 < max(waiting) <= A_READ / len(REQUEST) + 1
