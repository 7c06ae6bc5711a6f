"""The client: the service's own answers, each deadline kept, and every way to fail told as what it is."""

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from pydantic import SecretStr

from service import posting
from service.api import BatchAnswer, BatchRequest, BatchResponse, RankRequest, RankResponse
from service.app import create_app
from service.client import RankClient
from service.client_errors import (
    ClientError,
    LateError,
    ProblemError,
    UnreachableError,
    UnreadableError,
)
from service.deadline import Deadline
from service.ranker import rank

TOKEN = "räng"


def request(example_query, number=1, **changes):
    defaults = {
        "request_id": f"r-{number}",
        "scenario": "standard",
        "query": example_query(number),
        "event_time": "2026-03-01T12:00:00Z",
        "candidates": [f"standard-{number + offset}" for offset in range(12)],
    }
    return msgspec.convert(defaults | changes, RankRequest)


@pytest.fixture(scope="module")
def url(settings, servers):
    app = create_app(settings.model_copy(update={"rank_token": SecretStr(TOKEN)}))
    app.state.follower.poll()
    with servers.serving(app) as url:
        yield url


@pytest.fixture(scope="module")
def answer(snapshot, settings, example_query):
    """A whole answer."""
    return rank(request(example_query), snapshot, settings, Deadline()).response


def client_of(url, **options):
    return RankClient(url, **{"token": TOKEN, "timeout_s": 60.0} | options)


def test_importing_the_client_brings_in_nothing_of_the_server():
    code = "import json, sys, service.client, service.client_grouping; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    packages = {name.split(".")[0] for name in loaded}
    server = {"fastapi", "starlette", "uvicorn", "pydantic", "faiss", "onnxruntime", "numpy", "pyarrow", "indexing"}
    assert not packages & server
    assert {"msgspec", "urllib3"} <= packages


@pytest.mark.parametrize("media", ["msgpack", "json"])
def test_answers_are_those_of_the_service(url, snapshot, settings, example_query, media):
    requests = [request(example_query, number) for number in range(1, 8)]
    wrong = request(example_query, scenario="video")
    with client_of(url, media=media) as client:
        alone = [client.rank(one) for one in requests]
        together = client.rank_batch([*requests, wrong])
        many = client.rank_many([*requests, wrong], batch_size=3)
        for number, one in enumerate(requests):
            expected = rank(one, snapshot, settings, Deadline()).response
            for got in (alone[number], together[number], many[number]):
                assert isinstance(got, RankResponse)
                assert msgspec.structs.replace(got, timing_ms=expected.timing_ms) == expected
        with pytest.raises(ProblemError, match="422 Unprocessable") as refused:
            client.rank(wrong)
        for error in (refused.value, together[-1], many[-1]):
            assert (error.status, error.field) == (422, "scenario")
            assert error.type == "urn:adsieve:problem:invalid-value"
            assert "video" in error.detail
        assert client.rank_batch([]) == []


def test_a_token_is_sent_and_a_wrong_one_told(url, example_query):
    for token in (None, "wrong"):
        with client_of(url, token=token) as client, pytest.raises(ProblemError, match="401.*ADSIEVE_RANK_TOKEN"):
            client.rank(request(example_query))
    with pytest.raises(ValueError, match="must begin with http:// or https://, got 'localhost'"):
        RankClient("localhost")


def test_one_connection_serves_many_threads(url, example_query):
    with client_of(url, connections=1) as client, ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda number: client.rank(request(example_query, number)), range(1, 25)))
    assert [answer.request_id for answer in answers] == [f"r-{number}" for number in range(1, 25)]


def good(servers, answer):
    return servers.http(200, msgspec.msgpack.encode(answer))


def sent(asked, type_):
    return msgspec.msgpack.decode(asked.partition(b"\r\n\r\n")[2], type=type_)


def test_the_service_is_told_what_is_left_of_the_deadline(servers, answer, example_query):
    with servers.canned(good(servers, answer)) as host, client_of(host.url, timeout_s=7.0, reserve_s=0.5) as client:
        client.rank(request(example_query))
        client.rank(request(example_query, timeout_ms=40))
        client.rank(request(example_query, timeout_ms=90_000), timeout_s=3.0)
        told = [sent(asked, RankRequest).timeout_ms for asked in host.asked]
        assert 3_000 < told[0] <= 6_500
        assert told[1] == 40
        assert 1_000 < told[2] <= 2_500
    two = BatchResponse(answers=[BatchAnswer(status=200, answer=answer)] * 2)
    with servers.canned(good(servers, two)) as host, client_of(host.url, timeout_s=7.0) as client:
        client.rank_batch([request(example_query), request(example_query, timeout_ms=40)])
        first, second = sent(host.asked[0], BatchRequest).requests
        assert 3_000 < first.timeout_ms <= 7_000
        assert second.timeout_ms == 40


def test_a_late_answer_is_an_error_however_it_is_late(servers, example_query):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"
    never, trickling, stalled = None, [head, *[b"x"] * 2_000], [head, b"x", *[b""] * 2_000]
    for answer in (never, trickling, stalled):
        with servers.canned(answer) as host, client_of(host.url) as client:
            with pytest.raises(LateError, match="did not answer within 200 ms"):
                client.rank(request(example_query), timeout_s=0.2)
            with pytest.raises(LateError, match="within 0 ms"):
                client.rank(request(example_query), timeout_s=0.0)
            outcomes = client.rank_many([request(example_query)] * 5, timeout_s=0.2, batch_size=2)
            assert [type(outcome) for outcome in outcomes] == [LateError] * 5


def test_waiting_for_a_connection_counts(servers, example_query):
    with servers.canned(None) as host, client_of(host.url, connections=1) as client:

        def hold():
            with pytest.raises(LateError):
                client.rank(request(example_query), timeout_s=1.0)

        first = threading.Thread(target=hold)
        first.start()
        servers.wait_until(lambda: client._pool.connection_from_url(host.url).num_connections == 1)
        with pytest.raises(LateError, match="within 100 ms"):
            client.rank(request(example_query), timeout_s=0.1)
        first.join()


def test_a_refused_connection_is_tried_again_and_told(servers, example_query):
    with servers.canned(None) as host:
        pass
    for retries in (0, 2):
        with client_of(host.url, retries=retries) as client, pytest.raises(UnreachableError, match="NewConnection"):
            client.rank(request(example_query))


def test_a_connection_dropped_before_an_answer_is_opened_again_so_many_times(servers, answer, example_query):
    for drops, retries in ((1, 1), (3, 3)):
        with (
            servers.canned(*[b""] * drops, good(servers, answer)) as host,
            client_of(host.url, retries=retries) as client,
        ):
            assert client.rank(request(example_query)) == answer
            assert len(host.asked) == drops + 1
    with servers.canned(b"", good(servers, answer)) as host, client_of(host.url, retries=0) as client:
        with pytest.raises(UnreachableError, match="ProtocolError"):
            client.rank(request(example_query))
        assert len(host.asked) == 1


@pytest.mark.parametrize(
    ("bytes_of_answer", "kind", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngarbage", UnreadableError, "no RankResponse as"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xc0", UnreadableError, "Expected `object`, got"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\nshort", UnreachableError, "IncompleteRead"),
        (b"no HTTP at all", UnreachableError, "BadStatusLine"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\n<h1>", ProblemError, "502 Bad Gateway: <h1>"),
        (b"HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n", ProblemError, "599 unknown status"),
        (b"HTTP/1.1 302 F\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", ProblemError, "302 Found"),
        (b"HTTP/1.1 503 F\r\nRetry-After: soon\r\nContent-Length: 2\r\n\r\n{}", ProblemError, "503 Service Unavail"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_told_and_not_asked_for_again(servers, example_query, bytes_of_answer, kind, message):
    with servers.canned(bytes_of_answer) as host, client_of(host.url, retries=3, wait_if_overloaded=True) as client:
        with pytest.raises(kind, match=message) as told:
            client.rank(request(example_query))
        assert len(host.asked) == 1
        assert isinstance(told.value, ClientError)
        if kind is ProblemError:
            assert told.value.type == "about:blank"


def test_an_answer_of_any_length_is_not_read(servers, answer, example_query, monkeypatch):
    monkeypatch.setattr(posting, "MAX_ANSWER_BYTES", 100)
    with (
        servers.canned(good(servers, answer)) as host,
        client_of(host.url) as client,
        pytest.raises(UnreadableError, match="an answer of more than 100 bytes"),
    ):
        client.rank(request(example_query))


def test_an_overloaded_service_is_waited_for_if_that_is_wished_and_in_time(servers, answer, example_query):
    problem = b'{"type": "urn:adsieve:problem:overloaded", "title": "Busy", "status": 503, "detail": "full"}'
    now, later = (servers.http(503, problem, Retry_After=seconds) for seconds in ("0", "100"))
    with (
        servers.canned(now, now, good(servers, answer)) as host,
        client_of(host.url, wait_if_overloaded=True) as client,
    ):
        assert client.rank(request(example_query)) == answer
        assert len(host.asked) == 3
    for told, options in ((now, {}), (later, {"wait_if_overloaded": True})):
        with servers.canned(told, good(servers, answer)) as host, client_of(host.url, **options) as client:
            with pytest.raises(ProblemError, match="503 Busy: full") as refused:
                client.rank(request(example_query))
            assert refused.value.type == "urn:adsieve:problem:overloaded"
            assert refused.value.retry_after_s == (0 if told is now else 100)
            assert len(host.asked) == 1


def test_a_batch_is_answered_whole(servers, answer, example_query):
    one = BatchAnswer(status=200, answer=answer)
    with servers.canned(good(servers, BatchResponse(answers=[one]))) as host, client_of(host.url) as client:
        with pytest.raises(UnreadableError, match="gave 1 answers to 2 requests"):
            client.rank_batch([request(example_query)] * 2)
        outcomes = client.rank_many([request(example_query)] * 3, batch_size=2)
        assert [type(outcome) for outcome in outcomes] == [UnreadableError, UnreadableError, RankResponse]
    nothing = BatchResponse(answers=[one, BatchAnswer(status=500)])
    with servers.canned(good(servers, nothing)) as host, client_of(host.url) as client:
        outcomes = client.rank_batch([request(example_query)] * 2)
        assert outcomes[0] == answer
        assert str(outcomes[1]) == "neither an answer nor a problem, status 500"


def test_the_examples_of_the_how_to_run(settings, servers, capsys):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 4
    app = create_app(settings)
    app.state.follower.poll()
    with servers.serving(app) as url:
        code = "\n".join(blocks).replace("http://127.0.0.1:8000", url)
        code = code.replace("ad-009097", "shopping-1").replace("ad-008241", "shopping-2")  # ads of this catalogue
        exec(compile(code, str(page), "exec"), {})
    told = capsys.readouterr().out
    assert "['nobody']" in told
    assert "422 urn:adsieve:problem:invalid-value scenario" in told
    assert "no answer: 422" in told
    assert all(f"r-{number} ['" in told for number in range(32))
