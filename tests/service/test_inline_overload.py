"""On the event loop too, requests that come at once are counted in before one is ranked, and too many are refused."""

import asyncio

import msgspec
import pytest

from asgi import call, in_lifespan
from service.app import create_app


async def post(app, body):
    """One POST /rank; its status."""
    return (await call(app, "POST", "/rank", body))[0]


@pytest.mark.parametrize("limit", [1, 3])
def test_more_than_may_be_in_flight_are_refused_at_once(settings, limit, example_query):
    app = create_app(settings.model_copy(update={"rank_threads": 0, "max_in_flight": limit}))
    body = msgspec.json.encode(
        {"scenario": "standard", "query": example_query(1), "candidates": ["standard-1"], "stage": "light"}
    )

    async def ask():
        many = await asyncio.gather(*(post(app, body) for _ in range(10)))
        return many, await post(app, body)

    many, after = in_lifespan(app, ask)
    assert sorted(many) == [200] * limit + [503] * (10 - limit)
    assert after == 200
