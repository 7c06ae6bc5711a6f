"""Whatever is sent, nothing is a 500, and every answer is of the documented type."""

import random

import hypothesis
import msgspec
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from service.app import create_app

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]  # no 500 is documented
ODD_VALUES = [
    None,
    True,
    0,
    -1,
    2**63,
    1e308,
    float("nan"),
    "",
    "x" * 300,
    "\0",
    [],
    [[]],
    {},
    {"a": 1},
    b"\xff",
]


@schemathesis.serializer("application/msgpack")
def to_msgpack(context: schemathesis.SerializationContext, value: object) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # an integer that MessagePack cannot hold
        hypothesis.reject()


@schemathesis.deserializer("application/msgpack")
def from_msgpack(context: schemathesis.DeserializationContext, response: schemathesis.Response) -> object:
    return msgspec.msgpack.decode(response.content)


@pytest.fixture
def app(settings):
    app = create_app(settings)
    app.state.follower.poll()
    assert app.state.follower.is_ready
    return app


def test_requests_made_from_the_document(app):
    make_requests(app, 25)


@pytest.mark.slow
def test_many_requests_made_from_the_document(app):
    make_requests(app, 3_000)


def make_requests(app, count):
    """Let Schemathesis make ``count`` requests for each operation and check every answer against the document."""
    document = schemathesis.openapi.from_asgi("/openapi.json", app)
    properties = document.raw_schema["components"]["schemas"]["RankRequest"]["properties"]
    properties["scenario"] = {"enum": ["shopping", "standard", "auto"]}  # or else nearly all names are unknown ones
    for found in document.get_all_operations():

        @hypothesis.settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=HealthCheck)
        @given(case=found.ok().as_strategy())
        def check(case):
            case.call_and_validate(checks=CHECKS)

        check()


def test_mutated_requests_are_answered_or_refused(app, example_query):
    with TestClient(app) as client:
        mutate_and_send(client, example_query, 300)


@pytest.mark.slow
def test_many_mutated_requests_are_answered_or_refused(app, example_query):
    with TestClient(app) as client:
        mutate_and_send(client, example_query, 20_000)


def mutate_and_send(client, example_query, count):
    rng = random.Random(7)
    statuses, of_batches = set(), set()
    for number in range(count):
        path, body = "/rank", mutated(valid_body(example_query, number), rng)
        if rng.random() < 0.3:
            valid = {"requests": [valid_body(example_query, number + extra) for extra in range(3)]}
            path, body = "/rank/batch", mutated(valid, rng)
        packed = msgspec.msgpack.encode(body)
        media = "application/msgpack"
        if rng.random() < 0.5:
            packed, media = msgspec.json.encode(body), "application/json"
        if rng.random() < 0.3:
            packed = damaged(packed, rng)
        response = client.post(path, content=packed, headers={"Content-Type": media})
        assert response.status_code in (200, 400, 422), (response.text, packed)
        statuses.add((path, response.status_code))
        if path == "/rank/batch" and response.status_code == 200:
            decoder = msgspec.json if media == "application/json" else msgspec.msgpack
            of_batches |= {answer["status"] for answer in decoder.decode(response.content)["answers"]}
    assert statuses == {(path, status) for path in ("/rank", "/rank/batch") for status in (200, 400, 422)}
    assert {200, 422} <= of_batches <= {200, 400, 422}


def valid_body(example_query, number):
    return {
        "scenario": ("shopping", "standard", "auto")[number % 3],
        "query": example_query(number),
        "event_time": "2026-03-01T12:00:00Z",
        "candidates": {
            "ids": ["shopping-1", "standard-2", "shopping-ü広告-7"],
            "bids": [1.0, None, 2],
            "objectives": ["click", None, "conversion"],
            "affinity": [0.1, None, 3],
        },
        "filters": {"exclude_advertisers": ["advertiser-1"]},
        "survivors": 10,
        "limit": 2,
        "explain": True,
    }


def mutated(value, rng):
    """One or more parts of a JSON value replaced, removed or repeated."""
    if rng.random() < 0.04:
        return rng.choice(ODD_VALUES)
    if isinstance(value, dict):
        changed = {key: mutated(part, rng) for key, part in value.items() if rng.random() > 0.02}
        return changed | ({rng.choice(["", "ids", "ü", "time"]): rng.choice(ODD_VALUES)} if rng.random() < 0.03 else {})
    if isinstance(value, list):
        changed = [mutated(part, rng) for part in value]
        return changed + changed[:1] if rng.random() < 0.05 else changed
    return value


def damaged(packed, rng):
    position = rng.randrange(len(packed))
    return packed[:position] + bytes([rng.randrange(256)]) + packed[position + rng.randrange(3) :]
