"""Tokens, slow and lying clients, log lines, old indexes, clocks that jump."""

import asyncio
import io
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from service import ages, logs, workers
from service.app import create_app
from service.heavy import HeavyUnavailableError
from service.logs import JsonLines, PlaceLimits, RateLimit, TextLines, logging_request
from service.process_state import ProcessBoard
from service.serving_metrics import ServingMetrics

JSON = {"Content-Type": "application/json"}


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)


@contextmanager
def client_of(settings, **changed):
    app = create_app(settings.model_copy(update=changed))
    with TestClient(app, raise_server_exceptions=False) as client:
        wait_until(lambda: client.get("/health/ready").status_code == 200)
        yield client


@pytest.fixture
def body(example_query):
    return {"request_id": "r-7", "scenario": "shopping", "query": example_query(1), "candidates": ["shopping-1"]}


@pytest.fixture
def lines():
    """Lines of the service's loggers in JSON, as they come."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("service")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_ranking_asks_for_its_own_token_and_the_document_says_so(settings, body):
    tokens = {"rank_token": SecretStr("räng"), "admin_token": SecretStr("admin")}
    with client_of(settings, **tokens) as client:
        for wrong in (None, "Bearer admin", "Bearer ", "Basic räng", "räng"):
            headers = {} if wrong is None else {"Authorization": wrong.encode()}
            refused = client.post("/rank", json=body, headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "ADSIEVE_RANK_TOKEN" in refused.json()["detail"]
        right = {"Authorization": "Bearer räng".encode()}
        assert client.post("/rank", json=body, headers=right).status_code == 200
        assert client.post("/rank/", json=body, headers=right, follow_redirects=False).status_code != 200
        assert client.post("/rank/batch", json={"requests": [body]}).status_code == 401
        assert client.post("/rank/batch", json={"requests": [body]}, headers=right).status_code == 200
        assert client.post("/admin/reload", headers=right).status_code == 401
        for others in ("Bearer x", "Bearer räng"):
            for twice in ((others, "Bearer räng"), ("Bearer räng", others)):
                several = [("Authorization", one.encode()) for one in twice]
                assert client.post("/rank", json=body, headers=several).status_code == 401
                assert client.post("/rank/batch", json={"requests": [body]}, headers=several).status_code == 401
        document = client.get("/openapi.json").json()
        for path in ("/rank", "/rank/batch"):
            assert document["paths"][path]["post"]["security"] == [{"rank_token": []}]
        assert document["components"]["securitySchemes"]["rank_token"] == {"type": "http", "scheme": "bearer"}
        assert client.get("/health/ready").status_code == 200
    with client_of(settings) as client:
        assert "security" not in client.get("/openapi.json").json()["paths"]["/rank"]["post"]


def call(app, messages, headers):
    """The status and body of one raw ASGI call of /rank; after ``messages`` the client says nothing more."""
    sent = []

    async def run():
        waiting = list(messages)

        async def receive():
            if waiting:
                return waiting.pop(0)
            return await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/rank", "headers": headers, "query_string": b""}
        await app(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


def chunk(data, more=True):
    return {"type": "http.request", "body": data, "more_body": more}


@pytest.fixture
def app(settings):
    """Of an application that is ready; nothing repeats, and the light stage runs on the loop."""
    small = {"max_body_bytes": 1_000, "body_timeout_s": 0.2, "rank_threads": 0, "max_in_flight": 1}
    app = create_app(settings.model_copy(update=small))
    app.state.follower.poll()
    return app


def test_a_body_is_measured_whatever_its_length_is_said_to_be(app):
    media = (b"content-type", b"application/json")
    whole = [chunk(b" " * 400), chunk(b" " * 400), chunk(b" " * 400, more=False)]
    for headers in ([media], [media, (b"content-length", b"10")], [media, (b"content-length", b"-1")]):
        status, _, problem = call(app, whole, headers)
        assert (status, problem["type"]) == (413, "urn:adsieve:problem:too-large")
    status, _, _ = call(app, [], [media, (b"content-length", b"1001")])  # refused before anything is read
    assert status == 413
    status, _, problem = call(app, [chunk(b"{"), {"type": "http.disconnect"}], [media])
    assert (status, problem["type"]) == (400, "urn:adsieve:problem:disconnected")


def test_a_slow_client_does_not_hold_its_place_for_ever(app):
    headers = [(b"content-type", b"application/json"), (b"content-length", b"500")]
    for _ in range(3):  # of one place
        status, answered, problem = call(app, [chunk(b"{"), chunk(b'"sce')], headers)
        assert (status, problem["type"]) == (408, "urn:adsieve:problem:slow-body")
        assert answered[b"connection"] == b"close"
    status, _, problem = call(app, [chunk(b"{", more=False)], headers)
    assert (status, problem["type"]) == (400, "urn:adsieve:problem:not-parseable")


def test_slow_answers_and_refused_requests_are_logged_with_id_and_stages(settings, body, lines):
    with client_of(settings, slow_ms=1e-6) as client:
        assert client.post("/rank", json=body).status_code == 200
        assert client.post("/rank", json=body | {"request_id": "r-8", "survivors": 10**9}).status_code == 422
    slow, refused = [line for line in lines() if line["logger"] == "service.request_log"]
    assert (slow["request_id"], slow["level"], slow["candidates"]) == ("r-7", "warning", 1)
    assert slow["message"].startswith("a slow answer: ")
    assert slow["timing_ms"].keys() == {"decode", "query_tower", "light", "heavy", "total"}
    assert (refused["request_id"], refused["level"], refused["status"]) == ("r-8", "info", 422)
    assert refused["timing_ms"].keys() >= {"decode", "total"}


class BrokenRunner:
    """A heavy stage that never answers as asked."""

    def __init__(self, error):
        self._error = error

    def submit(self, call, deadline):
        raise self._error


def test_degraded_answers_are_logged_and_not_more_often_than_allowed(settings, body, lines):
    with client_of(settings, log_lines_per_s=2.0) as client:
        client.app.state.workers._heavy = BrokenRunner(HeavyUnavailableError("failed", "it broke"))
        for number in range(30):
            answer = client.post("/rank", json=body | {"request_id": f"r-{number}"})
            assert answer.json()["degraded"]["reason"] == "failed"
        degraded = [line for line in lines() if line["message"] == "a degraded answer: failed: it broke"]
        assert [line["request_id"] for line in degraded[:2]] == ["r-0", "r-1"]
        assert 2 <= len(degraded) < 30
        metrics = client.get("/metrics").text
        assert 'adsieve_degraded_requests_total{reason="failed"} 30.0' in metrics


def test_the_queue_of_the_heavy_stage_is_told(settings, body, monkeypatch):
    goes_on = threading.Event()
    run = workers.run_calls

    def held(calls):
        goes_on.wait(30)
        return run(calls)

    monkeypatch.setattr(workers, "run_calls", held)
    goes_on.set()  # for warm-up
    with client_of(settings, heavy_batch=1, rank_threads=4) as client:
        goes_on.clear()
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(client.post, "/rank", json=body) for _ in range(3)]
            wait_until(lambda: metrics_of(client)["adsieve_heavy_waiting"] == 2)
            assert metrics_of(client)["adsieve_rank_in_flight"] == 3
            goes_on.set()
            assert [one.result().status_code for one in asked] == [200] * 3
        assert metrics_of(client)["adsieve_heavy_waiting"] == 0
        assert metrics_of(client)["adsieve_heavy_batch_requests_count"] >= 3


def test_a_rate_limit_lets_through_so_many_a_second_and_tells_what_it_held_back(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: clock[0])
    limit = RateLimit(2.0)
    assert [limit.passes() for _ in range(5)] == [0, 0, None, None, None]
    clock[0] += 0.5
    assert [limit.passes() for _ in range(2)] == [3, None]
    clock[0] += 60.0
    assert [limit.passes() for _ in range(3)] == [1, 0, None]


@pytest.mark.parametrize("level", ["debug", "info", "error"])
def test_builds_of_faiss_that_this_machine_lacks_alarm_nobody(capsys, level):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.set_up_logs(level, "text")
        logging.getLogger("faiss.loader").info("Could not load library with AVX512 support")
        logging.getLogger("faiss.loader").warning("one that matters")
        logging.getLogger("service.any").error("another that matters")
    finally:
        root.handlers[:], root.level = before
        logging.captureWarnings(False)
        logging.getLogger("faiss.loader").setLevel(logging.NOTSET)
    output = capsys.readouterr().err
    assert "AVX512" not in output
    assert ("one that matters" in output) == (level != "error")
    assert "another that matters" in output


def test_a_place_in_the_code_that_logs_without_end_is_cut_and_others_are_not(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: clock[0])
    limits = PlaceLimits(2.0, 1.0)

    def line(number, traceback=None):
        return logging.LogRecord("a", logging.INFO, "file.py", number, "m", (), traceback)

    assert [limits.allows(line(1)) for _ in range(4)] == [True, True, False, False]
    assert [limits.allows(line(2)) for _ in range(2)] == [True, True]
    assert [limits.allows(line(3, (ValueError, ValueError(), None))) for _ in range(2)] == [True, False]
    clock[0] += 1.0
    after = line(1)
    assert limits.allows(after)
    assert json.loads(JsonLines().format(after))["held_back"] == 2


def test_a_line_is_one_json_object_whatever_it_holds():
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "two\n%s", ("lines",), None)
    record.fields = {"ads": 3, "odd": object}
    with logging_request("r\n1"):
        text = JsonLines().format(record)
        plain = TextLines(logs.TEXT).format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["message"], line["request_id"], line["ads"], line["logger"]) == ("two\nlines", "r\n1", 3, "a.b")
    assert line["time"].endswith("+00:00")
    assert "request_id='r\\n1'" in plain  # no line of its own
    try:
        raise ValueError("broken")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "m", (), (type(error), error, error.__traceback__))
    assert "ValueError: broken" in json.loads(JsonLines().format(record))["exception"]
    assert "request_id" not in json.loads(JsonLines().format(record))


def test_threads_do_not_see_the_id_of_one_another():
    seen = []

    def look():
        record = logging.LogRecord("a", logging.INFO, "f", 1, "m", (), None)
        seen.append(msgspec.json.decode(JsonLines().format(record)).get("request_id"))

    with logging_request("mine"):
        other = threading.Thread(target=look)
        other.start()
        other.join()
        look()
    look()
    assert seen == [None, "mine", None]


def metrics_of(client):
    lines = client.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_an_old_index_is_refused_by_policy_and_told_everywhere(settings, body):
    old = {"max_index_age_h": 0.001, "update_interval_s": 0.02}
    for policy, status in (("warn", 200), ("refuse", 503)):
        app = create_app(settings.model_copy(update=old | {"old_index": policy}))
        with TestClient(app) as client:
            wait_until(lambda: client.get("/health/ready").json()["old"] == ["shopping", "standard"])
            wait_until(lambda: metrics_of(client)['adsieve_index_old{scenario="shopping"}'] == 1)
            wait_until(lambda: app.state.follower.is_ready)  # noqa: B023
            answer = client.post("/rank", json=body)
            assert answer.status_code == status
            assert "older than 0.001 hours (max_index_age_h)" in answer.text
            assert client.get("/health/ready").json()["ready"] == (policy == "warn")
            metrics = metrics_of(client)
            watermark = metrics['adsieve_index_watermark_timestamp_seconds{scenario="shopping"}']
            assert metrics['adsieve_index_age_seconds{scenario="shopping"}'] == pytest.approx(
                time.time() - watermark, abs=60
            )
            if policy == "refuse":
                assert answer.json()["type"] == "urn:adsieve:problem:not-serving"
                assert metrics['adsieve_problems_total{kind="not-serving"}'] == 1


@pytest.mark.parametrize(
    ("clock_h", "age_h"),
    [(0, 5), (24 * 365, 5), (-3, 2), (-100, 5)],
    ids=["right", "set forward", "set back", "set back before the catalogue"],
)
def test_a_clock_that_jumps_makes_no_index_older(snapshot, settings, monkeypatch, clock_h, age_h):
    """Opened when its catalogue was 4 hours old, an hour ago."""
    loaded = snapshot.releases["shopping"]
    watermark = ages.catalogue_moment(loaded).timestamp()
    monkeypatch.setattr(ages.time, "monotonic", lambda: 1_000.0 + 3_600)
    monkeypatch.setattr(ages.time, "time", lambda: watermark + 3_600.0 * (5 + clock_h))
    opened = replace(loaded, opened_at=watermark + 4 * 3_600.0, opened_on=1_000.0)
    assert ages.index_age_s(opened) == pytest.approx(3_600 * age_h)
    limits = {"max_index_age_h": age_h + 0.01}
    assert not ages.is_old(opened, settings.model_copy(update=limits))
    assert ages.is_old(opened, settings.model_copy(update={"max_index_age_h": age_h - 0.01}))
    before_it_was_set = replace(loaded, opened_at=0.0, opened_on=1_000.0)
    assert ages.index_age_s(before_it_was_set) == max(0, 3_600 * (5 + clock_h))


def test_an_index_whose_watermark_lies_ahead_is_as_old_as_its_making(snapshot, settings, monkeypatch):
    loaded = snapshot.releases["shopping"]
    made = datetime.fromisoformat(loaded.index.manifest.created_at)
    monkeypatch.setattr(ages.time, "time", lambda: made.timestamp() + 5 * 3_600.0)
    opened = replace(loaded, opened_at=made.timestamp() + 5 * 3_600.0, opened_on=ages.time.monotonic())
    opened.__dict__["watermark"] = made + timedelta(days=700)  # earlier versions took a row that lay ahead for it
    assert ages.index_age_s(opened) == pytest.approx(5 * 3_600.0, abs=60)
    (line,) = ages.age_warnings([opened], settings.model_copy(update={"max_index_age_h": 4.0}))
    assert f"is of {made.isoformat()} (its making; its watermark, " in line
    assert ages.age_warnings([opened], settings.model_copy(update={"max_index_age_h": 6.0})) == []
    metrics = ServingMetrics(ProcessBoard(None))
    metrics.loaded(opened, at=0.0)
    values = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    assert values["adsieve_index_age_seconds"] == pytest.approx(5 * 3_600.0, abs=60)
    assert values["adsieve_index_watermark_timestamp_seconds"] == opened.watermark.timestamp()


def test_the_examples_of_the_document_are_requests_that_are_answered(settings):
    with client_of(settings) as client:
        document = client.get("/openapi.json").json()
        for path in ("/rank", "/rank/batch"):
            for content in document["paths"][path]["post"]["requestBody"]["content"].values():
                answer = client.post(path, json=content["example"])
                assert answer.status_code == 200
        for name in ("Explain", "CandidateTrace", "FeatureReport"):
            assert name in document["components"]["schemas"]
        properties = document["components"]["schemas"]["CandidateTrace"]["properties"]
        assert properties["stages"]["items"]["enum"] == ["answer", "dropped", "light", "survivor"]


def test_a_refusal_repeats_little_of_a_value_of_megabytes(settings, body, lines):
    odd = [{"scenario": "x" * 3_000_000}, {"query": {"y" * 3_000_000: [{}]}}, {"candidates": {"z" * 3_000_000: 1}}]
    with client_of(settings) as client:
        for number, changed in enumerate(odd):
            answer = client.post("/rank", json=body | changed | {"request_id": f"long-{number}"})
            assert len(answer.content) < 20_000, answer.text[:300]
        many = body | {"query": {f"feature-{number}": number for number in range(20_000)}}
        told = client.post("/rank", json=many).json()["warnings"]
    assert told[0] == "unknown feature query.feature-0 ignored"
    assert told[50] == "19,950 more unknown features ignored"
    assert len(told) < 60
    refused = client.post("/rank", json=body | odd[0]).json()
    assert refused["detail"].startswith("scenario: ")
    assert refused["detail"].endswith(client.post("/rank", json=body | {"scenario": "x"}).json()["detail"][-20:])
    logged = [line for line in lines() if str(line.get("request_id", "")).startswith("long-")]
    assert logged
    assert all(len(json.dumps(line)) < 10_000 for line in logged)


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines(logs.TEXT)])
def test_lines_of_the_log_hold_the_ends_of_long_messages_and_tracebacks(formatter):
    try:
        raise ValueError("v" * 1_000_000)
    except ValueError as error:
        bug = (type(error), error, error.__traceback__)
    record = logging.LogRecord("service", logging.ERROR, "a.py", 1, "it is %s, expected 1", ("x" * 1_000_000,), bug)
    line = formatter.format(record)
    assert len(line) < 60_000
    for part in ("it is xxx", "more characters] xxx", "expected 1", "Traceback (most recent call last)", "vvv"):
        assert part in line
