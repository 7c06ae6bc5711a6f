"""On the event loop, requests that wait together are answered as each is alone, whoever else waits or goes away."""

import asyncio
import random

import msgspec

from asgi import call, in_lifespan
from service.app import create_app


async def post(app, body):
    """POST /rank: status and answer, without what differs from call to call."""
    status, answer = await call(app, "POST", "/rank", body)
    return status, {name: value for name, value in msgspec.json.decode(answer).items() if name != "timing_ms"}


async def shared_calls(app):
    """Calls of the query tower that were shared, and requests in them."""
    _, text = await call(app, "GET", "/metrics")
    lines = (line.split() for line in text.decode().splitlines() if line.startswith("adsieve_query_batch_requests_"))
    told = {line[0]: float(line[1]) for line in lines if len(line) == 2}
    return told["adsieve_query_batch_requests_count"], told["adsieve_query_batch_requests_sum"]


def random_body(rng, example_query, number):
    """A request of either scenario or both; some are wrong, or late from the start."""
    ids = [f"{rng.choice(['shopping', 'standard'])}-{rng.randrange(45)}" for _ in range(rng.randrange(30))]
    request = {
        "request_id": f"r-{number}",
        "scenario": rng.choice(["shopping", "standard", "auto"]),
        "query": example_query(rng.randrange(50)),
        "event_time": "2026-03-01T12:00:00Z",
        "stage": rng.choice(["full", "light", "light"]),
        "survivors": rng.randrange(1, 20),
        "explain": rng.random() < 0.3,
    }
    if rng.random() < 0.7:
        request["candidates"] = ids
    wrong = {"scenario": "video", "query": 3, "survivors": 0, "timeout_ms": 1e-3, "event_time": "noon"}
    if rng.random() < 0.25:
        name = rng.choice(sorted(wrong))
        request[name] = wrong[name]
    return msgspec.json.encode(request)[: None if rng.random() < 0.95 else -1]


def app_of(settings, batching):
    changes = {"rank_threads": 0, "query_batching": batching, "max_waiting": 64}
    return create_app(settings.model_copy(update=changes))


def test_answers_are_those_of_each_alone(settings, example_query):
    rng = random.Random(3)
    bodies = [random_body(rng, example_query, number) for number in range(120)]
    alone, together = app_of(settings, "off"), app_of(settings, "on")

    async def one_by_one():
        return [await post(alone, body) for body in bodies]

    async def at_once():
        found = []
        while len(found) < len(bodies):
            several = bodies[len(found) :][: rng.randrange(1, 12)]
            found += await asyncio.gather(*(post(together, body) for body in several))
        return found, await shared_calls(together)

    wanted = in_lifespan(alone, one_by_one)
    found, (calls, requests) = in_lifespan(together, at_once)
    assert found == wanted
    assert {status for status, _ in found} >= {200, 400, 422, 503}
    assert 0 < 1.35 * calls < requests <= 2 * calls


def test_who_goes_away_costs_the_others_nothing(settings, example_query):
    rng = random.Random(4)
    bodies = [random_body(rng, example_query, number) for number in range(12)]
    alone, together = app_of(settings, "off"), app_of(settings, "on")

    async def one_by_one():
        return [await post(alone, body) for body in bodies]

    async def some_leave():
        found = []
        for after in range(8):
            tasks = [asyncio.create_task(post(together, body)) for body in bodies]
            for _ in range(after):
                await asyncio.sleep(0)
            for place in (0, 2, 3, 7):
                tasks[place].cancel()
            found.append(await asyncio.gather(*tasks, return_exceptions=True))
        return found

    wanted = in_lifespan(alone, one_by_one)
    for found in in_lifespan(together, some_leave):
        for place, (got, expected) in enumerate(zip(found, wanted, strict=True)):
            left = place in (0, 2, 3, 7) and isinstance(got, asyncio.CancelledError)
            assert left or got == expected
