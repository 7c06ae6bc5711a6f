"""The HTTP part alone: a raw ASGI application that reads the body and answers the bytes of a file.

``ADSIEVE_ECHO=FILE uvicorn benchmarks.serving_echo:create_app --factory``.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

VARIABLE = "ADSIEVE_ECHO"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def create_app() -> Callable[[dict[str, Any], Receive, Send], Awaitable[None]]:
    """The application."""
    answer = Path(os.environ[VARIABLE]).read_bytes()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = []
        more = True
        while more:
            message = await receive()
            body.append(message.get("body", b""))
            more = message.get("more_body", False)
        b"".join(body)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app
