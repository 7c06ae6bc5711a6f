"""Whatever is sent, nothing is a 500, and every answer is of the documented type."""

import random

import hypothesis
import msgspec
import numpy as np
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from contracts.encoding import Encoded
from service.app import create_app
from service.heavy import HeavyCall
from service.heavy_role import create_heavy_app
from service.heavy_wire import encode_call

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


@pytest.fixture
def heavy_app(settings):
    app = create_heavy_app(settings)
    app.state.host.poll()
    assert app.state.host.is_ready
    return app


ROUTES = {
    *("/rank", "/rank/batch", "/health/live", "/health/ready", "/metrics", "/releases"),
    *("/admin/rollback", "/admin/reload"),
}
HEAVY_ROUTES = {"/heavy", "/health/live", "/health/ready", "/metrics"}


def test_requests_made_from_the_document(app):
    assert make_requests(app, 25) >= ROUTES


def test_requests_made_from_the_document_of_a_heavy_host(heavy_app):
    assert make_requests(heavy_app, 25) == HEAVY_ROUTES


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_requests_made_from_the_document(app):
    make_requests(app, 3_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_requests_made_from_the_document_of_a_heavy_host(heavy_app):
    make_requests(heavy_app, 3_000)


def make_requests(app, count):
    """Let Schemathesis make ``count`` requests for each operation and check every answer against the document.

    Returns the paths that were asked.
    """
    document, paths = schemathesis.openapi.from_asgi("/openapi.json", app), set()
    schemas = document.raw_schema["components"]["schemas"]
    if "RankRequest" in schemas:  # or else nearly all names are unknown ones
        schemas["RankRequest"]["properties"]["scenario"] = {"enum": ["shopping", "standard", "auto"]}
    for found in document.get_all_operations():
        paths.add(found.ok().path)

        @hypothesis.settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=HealthCheck)
        @given(case=found.ok().as_strategy())
        def check(case):
            case.call_and_validate(checks=CHECKS)

        check()
    return paths


def test_mutated_requests_are_answered_or_refused(app, example_query):
    with TestClient(app) as client:
        mutate_and_send(client, example_query, 300)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_mutated_requests_are_answered_or_refused(app, example_query):
    with TestClient(app) as client:
        mutate_and_send(client, example_query, 100_000)


def test_mutated_calls_are_answered_or_refused(heavy_app, snapshot):
    with TestClient(heavy_app) as client:
        mutate_and_call(client, snapshot, 500)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_mutated_calls_are_answered_or_refused(heavy_app, snapshot):
    with TestClient(heavy_app) as client:
        mutate_and_call(client, snapshot, 100_000)


def mutate_and_call(client, snapshot, count):
    """Calls of the heavy stage, their fields and bytes changed; another version than the host's is 503."""
    rng = random.Random(8)
    heavy = snapshot.releases["shopping"].heavy
    encoders = (heavy.encoders.query_encoder, heavy.encoders.ad_encoder, heavy.encoders.pair_encoder)
    query, ads, pair = (
        Encoded(
            np.ones((rows, encoder.layout.num_ids), np.int32), np.ones((rows, encoder.layout.num_floats), np.float32)
        )
        for encoder, rows in zip(encoders, (1, 3, 3), strict=True)
    )
    call = HeavyCall(heavy=heavy, query=query, ads=ads, pair=pair, members=np.arange(3))
    valid = msgspec.msgpack.decode(encode_call(call, timeout_ms=None))
    statuses, version = set(), heavy.version
    for _ in range(count):
        packed = msgspec.msgpack.encode(mutated(valid, rng))
        if rng.random() < 0.5:
            packed = damaged(packed, rng)
        response = client.post("/heavy", content=packed, headers={"Content-Type": "application/msgpack"})
        assert response.status_code in (200, 400, 422, 503), (response.text, packed)
        if response.status_code == 503:
            assert response.json()["type"].endswith((":not-serving", ":deadline")), (response.text, version)
        statuses.add(response.status_code)
    assert statuses == {200, 400, 422, 503}


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
        if media == "application/json" and rng.random() < 0.5:
            packed += b" " * 2_048  # a body of some length, whose candidates are cut out of it
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
