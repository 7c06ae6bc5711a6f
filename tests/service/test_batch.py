"""POST /rank/batch answers each request as /rank answers it alone, whatever the others are."""

import asyncio
import random
from concurrent.futures import Future

import httpx
import msgspec
import pyarrow.dataset as ds
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.heavy_runner import DirectRunner

EVENT_TIME = "2026-03-01T12:00:00Z"
MSGPACK = {"Content-Type": "application/msgpack"}


def client_of(settings, **changes):
    app = create_app(settings.model_copy(update=changes))
    app.state.follower.poll()
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(settings):
    with client_of(settings) as client:
        yield client


def random_request(rng, example_query, number):
    """A request of any kind; one in five is wrong."""
    scenario = rng.choice(["shopping", "standard", "auto"])
    ids = [f"{rng.choice(['shopping', 'standard'])}-{rng.randrange(45)}" for _ in range(rng.randrange(30))]
    request = {
        "request_id": f"r-{number}",
        "scenario": scenario,
        "query": example_query(rng.randrange(50)),
        "event_time": EVENT_TIME,
        "stage": rng.choice(["full", "full", "light"]),
        "survivors": rng.randrange(1, 20),
        "explain": rng.random() < 0.3,
    }
    if rng.random() < 0.3:
        request["candidates"] = ids
    elif rng.random() < 0.8:
        request["candidates"] = {"ids": ids, "affinity": [rng.random() for _ in ids]}
    wrong = {"scenario": "video", "query": 3, "survivors": 0, "stage": "medium", "nonsense": 1, "event_time": "noon"}
    if rng.random() < 0.2:
        name = rng.choice(sorted(wrong))
        request[name] = wrong[name]
    return request


def untimed(answer):
    return {name: value for name, value in answer.items() if name != "timing_ms"}


@pytest.mark.parametrize("media", ["json", "msgpack"])
def test_a_batch_gives_what_its_requests_get_alone(client, example_query, media):
    rng = random.Random(5)
    seen = set()
    for _ in range(12):
        requests = [random_request(rng, example_query, number) for number in range(rng.randrange(12))]
        if media == "json":
            answers = client.post("/rank/batch", json={"requests": requests}).json()["answers"]
        else:
            packed = msgspec.msgpack.encode({"requests": requests})
            response = client.post("/rank/batch", content=packed, headers=MSGPACK)
            assert response.headers["content-type"] == "application/msgpack"
            answers = msgspec.msgpack.decode(response.content)["answers"]
        assert len(answers) == len(requests)
        for request, answer in zip(requests, answers, strict=True):
            alone = client.post("/rank", json=request)
            seen.add(alone.status_code)
            assert answer["status"] == alone.status_code
            if alone.status_code == 200:
                assert answer.keys() == {"status", "answer"}
                assert untimed(answer["answer"]) == untimed(alone.json())
            else:
                assert answer == {"status": alone.status_code, "problem": alone.json()}
    assert seen == {200, 422}


def good(example_query, **changes):
    ids = [f"standard-{number}" for number in range(1, 20)]
    return {
        "scenario": "standard",
        "query": example_query(1),
        "event_time": EVENT_TIME,
        "candidates": ids,
    } | changes


def test_what_is_no_request_at_all_costs_the_others_nothing(client, example_query):
    request = good(example_query)
    answers = client.post("/rank/batch", json={"requests": [request, 3, None, "x", [], {}, request]}).json()["answers"]
    assert [answer["status"] for answer in answers] == [200, *[422] * 5, 200]
    fields = [answer["problem"]["field"] for answer in answers[1:-1]]
    assert fields == ["body", "body", "body", "body", "scenario"]
    with_bad_text = b'{"requests": [' + msgspec.json.encode(request) + b', {"scenario": "\xff", "query": {}}]}'
    response = client.post("/rank/batch", content=with_bad_text, headers={"Content-Type": "application/json"})
    assert [answer["status"] for answer in response.json()["answers"]] == [200, 400]


def test_limits_of_the_whole(settings, example_query):
    request = good(example_query)
    with client_of(settings, max_batch=3, max_body_bytes=5_000) as client:

        def refused(status, field=None, **sent):
            response = client.post("/rank/batch", **sent)
            assert response.status_code == status, response.text
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json().get("field") == field
            return response.json()["detail"]

        assert client.post("/rank/batch", json={"requests": []}).json() == {"answers": []}
        assert len(client.post("/rank/batch", json={"requests": [request] * 3}).json()["answers"]) == 3
        assert refused(422, "requests", json={"requests": [request] * 4}) == "requests: at most 3, got 4"
        refused(422, "requests", json={"requests": 3})
        refused(422, "requests", json={})
        refused(422, "more", json={"requests": [], "more": 1})
        refused(422, "body", json=[request])
        refused(413, content=b"x" * 5_001)
        refused(415, content=b"x", headers={"Content-Type": "text/plain"})
        for content in (b"", b'{"requests": [{]}', b'{"requests": [1'):
            refused(400, content=content, headers={"Content-Type": "application/json"})
        refused(400, content=b"\xc1", headers=MSGPACK)
        assert client.get("/rank/batch").status_code == 405
    with client_of(settings, max_batch=9, max_in_flight=2) as client:
        assert "at most 2, got 3" in client.post("/rank/batch", json={"requests": [request] * 3}).json()["detail"]


def test_each_has_its_own_deadline(client, example_query):
    requests = [good(example_query, timeout_ms=timeout_ms) for timeout_ms in (60_000, 1e-6, None, 60_000)]
    answers = client.post("/rank/batch", json={"requests": requests}).json()["answers"]
    assert [answer["status"] for answer in answers] == [200, 503, 200, 200]
    assert answers[1]["problem"]["type"] == "urn:adsieve:problem:deadline"


class StallingRunner:
    """A heavy stage that never answers calls with a deadline."""

    def __init__(self):
        self._direct = DirectRunner()

    def submit(self, call, deadline):
        return self._direct.submit(call, deadline) if deadline.remaining_s() > 100 else Future()


def test_one_that_is_late_in_the_heavy_stage_leaves_the_others_their_order(settings, example_query):
    requests = [good(example_query, timeout_ms=timeout_ms) for timeout_ms in (None, 300, None)]
    with client_of(settings) as client:
        client.app.state.workers._heavy = StallingRunner()
        answers = [
            answer["answer"] for answer in client.post("/rank/batch", json={"requests": requests}).json()["answers"]
        ]
    assert [answer["degraded"] and answer["degraded"]["reason"] for answer in answers] == [None, "deadline", None]
    assert answers[0]["ads"] == answers[2]["ads"]
    assert answers[1]["ads"]["heavy"] is None


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)


def test_heavy_calls_are_made_together_and_each_request_counts(settings, example_query, tmp_path):
    feedback = {"feedback_dir": tmp_path / "log"}
    limits = {"heavy_batch": 6, "heavy_batch_wait_ms": 1_000.0}  # a batch of 6 waits for nothing, others would
    with client_of(settings, **limits, **feedback) as client:
        before = metric(client, "adsieve_heavy_batch_requests_count")
        requests = [good(example_query, request_id=f"r-{number}") for number in range(6)]
        answers = client.post("/rank/batch", json={"requests": [*requests, {}]}).json()["answers"]
        assert [answer["status"] for answer in answers] == [200] * 6 + [422]
        assert metric(client, "adsieve_heavy_batch_requests_count") - before == 1
        assert metric(client, "adsieve_heavy_batch_requests_sum") >= 6
        assert metric(client, 'adsieve_rank_requests_total{status="200"}') == 6
        assert metric(client, 'adsieve_rank_requests_total{status="422"}') == 1
        assert metric(client, 'adsieve_stage_seconds_count{stage="total"}') == 6
        assert metric(client, "adsieve_rank_in_flight") == 0
    logged = ds.dataset(tmp_path / "log" / "requests").to_table(columns=["request_id"])
    assert sorted(logged["request_id"].to_pylist()) == [f"r-{number}" for number in range(6)]


def test_a_batch_for_which_there_is_no_room_is_refused_as_a_whole(settings, example_query):
    app = create_app(settings.model_copy(update={"max_in_flight": 3, "retry_after_s": 7}))
    request = good(example_query)

    async def run():
        app.state.follower.poll()
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://s") as client,
        ):
            go, reading = asyncio.Event(), asyncio.Event()

            async def slow_body():
                reading.set()
                await go.wait()
                yield msgspec.json.encode(request)

            first = asyncio.create_task(client.post("/rank", content=slow_body()))
            await reading.wait()
            refused = await client.post("/rank/batch", json={"requests": [request] * 3})
            taken = await client.post("/rank/batch", json={"requests": [request] * 2})
            go.set()
            return refused, taken, (await first), await client.post("/rank/batch", json={"requests": [request] * 3})

    refused, taken, first, afterwards = asyncio.run(run())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "7")
    assert refused.json()["type"] == "urn:adsieve:problem:overloaded"
    assert [response.status_code for response in (taken, first, afterwards)] == [200, 200, 200]
    assert [answer["status"] for answer in afterwards.json()["answers"]] == [200] * 3


def test_on_the_event_loop_it_is_the_same(settings, client, example_query):
    requests = {"requests": [good(example_query, request_id="r"), {}]}
    with client_of(settings, rank_threads=0) as other:
        here, there = (one.post("/rank/batch", json=requests).json()["answers"] for one in (client, other))
    assert untimed(here[0]["answer"]) == untimed(there[0]["answer"])
    assert here[1] == there[1]


def test_the_document_shows_the_true_schema(client):
    document = client.get("/openapi.json").json()
    post = document["paths"]["/rank/batch"]["post"]
    content = post["requestBody"]["content"]["application/msgpack"]
    assert content["schema"] == {"$ref": "#/components/schemas/BatchRequest"}
    assert post["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/BatchResponse")
    items = document["components"]["schemas"]["BatchRequest"]["properties"]["requests"]["items"]
    assert items == {"$ref": "#/components/schemas/RankRequest"}
    example = client.post("/rank/batch", json=content["example"]).json()
    assert [answer["status"] for answer in example["answers"]] == [200, 200]
