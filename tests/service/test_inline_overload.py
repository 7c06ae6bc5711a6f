"""On the event loop too, requests that come at once are counted in before one is ranked, and too many are refused."""

import asyncio

import msgspec
import pytest

from service.app import create_app


async def post(app, body):
    """One POST /rank by ASGI alone; its status."""
    sent, told = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive():
        return sent.pop(0) if sent else {"type": "http.disconnect"}

    async def send(message):
        told.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await app({"type": "http", "method": "POST", "path": "/rank", "headers": headers}, receive, send)
    return told[0]["status"]


@pytest.mark.parametrize("limit", [1, 3])
def test_more_than_may_be_in_flight_are_refused_at_once(settings, limit, example_query):
    app = create_app(settings.model_copy(update={"rank_threads": 0, "max_in_flight": limit}))
    body = msgspec.json.encode(
        {"scenario": "standard", "query": example_query(1), "candidates": ["standard-1"], "stage": "light"}
    )

    async def ask():
        async with app.router.lifespan_context(app):
            for _ in range(1_000):
                if app.state.follower.is_ready:
                    break
                await asyncio.sleep(0.02)
            many = await asyncio.gather(*(post(app, body) for _ in range(10)))
            return many, await post(app, body)

    many, after = asyncio.run(ask())
    assert sorted(many) == [200] * limit + [503] * (10 - limit)
    assert after == 200
