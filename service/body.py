"""Reads a request body, never more of it than allowed."""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, cast

from starlette.types import Receive

from service.problems import HttpProblem


async def read_body(declared: str | None, receive: Receive, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body.

    Args:
        declared: The Content-Length header, if there is one.

    Raises:
        HttpProblem: 413 as soon as the body is known to be longer than ``max_bytes``; 400 when the client went away;
            408 when the body is not complete after ``timeout_s``, and the connection ends.
    """
    if declared is not None and declared.isascii() and declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    reading = _whole(receive, max_bytes)
    try:
        waits_for = reading.send(None)
    except StopIteration as end:  # all of it was there, as nearly always: a timer would cost more than to read it
        return cast(bytes, end.value)
    try:
        async with asyncio.timeout(timeout_s):
            return await _resumed(reading, waits_for)
    except TimeoutError:
        detail = f"the body was not complete after {timeout_s:g} s"
        raise HttpProblem(408, "slow-body", detail, headers={"Connection": "close"}) from None


@coroutine
def _resumed(reading: Coroutine[Any, None, bytes], waits_for: Any) -> Generator[Any, None, bytes]:
    """Go on with a coroutine whose first step ended in waiting for a future."""
    try:
        yield waits_for
    except BaseException as error:  # cancelled
        reading.throw(error)
        raise
    return (yield from reading.__await__())


async def _whole(receive: Receive, max_bytes: int) -> bytes:
    chunks, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            detail = "the client closed the connection before the body was complete"
            raise HttpProblem(400, "disconnected", detail)
        chunk = message.get("body", b"")
        chunks.append(chunk)
        length += len(chunk)
        if length > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(max_bytes: int) -> HttpProblem:
    return HttpProblem(413, "too-large", f"the body is longer than {max_bytes:,} bytes")
