"""Reads a request body, never more of it than allowed."""

from starlette.requests import ClientDisconnect, Request

from service.problems import HttpProblem


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        HttpProblem: 413 as soon as the body is known to be longer than ``max_bytes``; 400 when the client went away.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks, length = [], 0
    try:
        async for chunk in request.stream():
            chunks.append(chunk)
            length += len(chunk)
            if length > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise HttpProblem(
            400, "disconnected", "the client closed the connection before the body was complete"
        ) from None
    return b"".join(chunks)


def _too_large(max_bytes: int) -> HttpProblem:
    return HttpProblem(413, "too-large", f"the body is longer than {max_bytes:,} bytes")
