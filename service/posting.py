"""One POST over a pool of connections: in time, its answer of a bearable size."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import urllib3

from contracts.errors import AdsieveError

MAX_ANSWER_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16


class AnswerSizeError(AdsieveError):
    """The answer is longer than is read."""


@dataclass(frozen=True)
class Answer:
    """What came back; names of headers in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def post(pool: urllib3.PoolManager, url: str, body: bytes, headers: Mapping[str, Any], end: float) -> Answer:
    """Send a body and read the whole answer.

    Args:
        headers: Values are text, sent as Latin-1, or bytes.
        end: ``time.monotonic()`` when it is too late.

    Raises:
        TimeoutError: It is too late; so does urllib3's own.
        urllib3.exceptions.HTTPError: No connection, or it broke; ProtocolError where that may be before the answer.
        AnswerSizeError: The answer is too long.
    """
    left_s = max(end - time.monotonic(), 1e-3)
    response: Any = pool.request(
        "POST",
        url,
        body=body,
        headers=headers,
        timeout=urllib3.Timeout(total=left_s),
        pool_timeout=left_s,
        preload_content=False,
        redirect=False,
        retries=False,
    )
    try:
        answer = _read(response, end)
    except BaseException:
        response.close()  # what is left of the answer must not meet the next call
        raise
    response.release_conn()
    return Answer(response.status, response.headers, answer)


def _read(response: Any, end: float) -> bytes:
    chunks, length = [], 0
    while chunk := response.read1(_CHUNK_BYTES, decode_content=False):
        chunks.append(chunk)
        length += len(chunk)
        if length > MAX_ANSWER_BYTES:
            raise AnswerSizeError(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
        left_s = end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if response.connection is not None and response.connection.sock is not None:
            response.connection.sock.settimeout(left_s)  # or else each wait would have all the time again
    return b"".join(chunks)
