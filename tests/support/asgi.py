"""Applications asked by ASGI alone, so that requests can come at the same moment on one event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def call(app: Any, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One request: status and body."""
    sent, told = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive() -> dict[str, Any]:
        return sent.pop(0) if sent else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    return told[0]["status"], told[1]["body"]


def in_lifespan(app: Any, work: Callable[[], Awaitable[T]]) -> T:
    """What some work returns while the application lives and is ready."""

    async def run() -> T:
        async with app.router.lifespan_context(app):
            while not app.state.follower.is_ready:
                await asyncio.sleep(0.02)
            return await work()

    return asyncio.run(run())
