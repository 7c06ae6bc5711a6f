"""Bodies in one piece and in several, at once and late, and callers that go away."""

import asyncio

import pytest

from service.body import read_body
from service.problems import HttpProblem


def reading(pieces, *, timeout_s=30.0, declared=None):
    """Read pieces, before each of which there is a wait where it says so; None is a caller who went away."""
    given = iter(pieces)

    async def receive():
        waits, piece, more = next(given)
        if waits:
            await asyncio.sleep(waits)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": more}

    return read_body(declared, receive, 10, timeout_s)


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, b"abcdef", False)],
        [(0, b"abc", True), (0, b"", True), (0, b"def", False)],
        [(1e-3, b"abcdef", False)],
        [(0, b"abc", True), (1e-3, b"d", True), (0, b"e", True), (1e-3, b"f", False)],
    ],
)
def test_the_whole_body_is_read(pieces):
    assert asyncio.run(reading(pieces)) == b"abcdef"


@pytest.mark.parametrize("waits", [0, 1e-3])
def test_what_is_too_long_or_broken_off_is_refused(waits):
    for pieces, status in [
        ([(waits, b"a" * 11, False)], 413),
        ([(0, b"a" * 6, True), (waits, b"a" * 6, True)], 413),
        ([(0, b"a", True), (waits, None, False)], 400),
    ]:
        with pytest.raises(HttpProblem) as refused:
            asyncio.run(reading(pieces))
        assert refused.value.status == status
    with pytest.raises(HttpProblem) as refused:
        asyncio.run(reading([], declared="11"))
    assert refused.value.status == 413


@pytest.mark.parametrize("pieces", [[(60, b"", False)], [(0, b"a", True), (1e-3, b"b", True), (60, b"", False)]])
def test_what_is_late_is_refused_and_what_is_cancelled_ends(pieces):
    with pytest.raises(HttpProblem, match=r"not complete after 0\.02 s") as refused:
        asyncio.run(reading(pieces, timeout_s=0.02))
    assert refused.value.status == 408

    async def cancelled():
        task = asyncio.create_task(reading(pieces))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
