"""The heavy stage on another host: the same answers, and the light order with the reason when that host fails."""

import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
import numpy as np
import pytest
import urllib3
import uvicorn
from pydantic import SecretStr

from contracts.encoding import Encoded
from contracts.errors import ArtifactError, InputError, RequestError
from service.batching import QueueFullError
from service.deadline import Deadline
from service.heavies import REMOTE
from service.heavy import HeavyCall, HeavyUnavailableError, run_calls
from service.heavy_role import create_heavy_app
from service.heavy_wire import (
    HeavyAnswer,
    call_of,
    decode_call,
    decode_logits,
    encode_call,
    encode_logits,
    request_id_header,
    request_id_of,
)
from service.logs import JsonLines, logging_request
from service.ranker import rank
from service.releases import Snapshot, load_release
from service.remote_heavy import Pause, RemoteError, RemoteRunner
from service.wire import decode_request


@pytest.fixture(scope="module")
def heavy_settings(settings):
    return settings.model_copy(update={"heavy_token": SecretStr("päss"), "rank_threads": 1})


@pytest.fixture(scope="module")
def heavy_host(heavy_settings, servers) -> Iterator[str]:
    app = create_heavy_app(heavy_settings)
    with servers.serving(app) as url:
        servers.wait_until(lambda: app.state.host.is_ready)
        yield url


@contextmanager
def asking(settings, url: str, **changes) -> Iterator[RemoteRunner]:
    with RemoteRunner(settings.model_copy(update={"heavy_url": url, **changes})) as runner:
        yield runner


@pytest.fixture(scope="module")
def elsewhere(world, as_built) -> Snapshot:
    """What serves ``world`` where another host runs the heavy stage."""
    snapshot = Snapshot()
    for scenario in world.store.scenarios():
        release = world.store.current(scenario)
        loaded = load_release(
            release,
            world.store.paths(release),
            serving=snapshot,
            open_live=as_built,
            engine_threads=1,
            heavy_engine=REMOTE,
        )
        snapshot = snapshot.with_release(loaded)
    return snapshot


def body(example_query, **changes):
    ids = [f"{scenario}-{i}" for i in range(1, 30) for scenario in ("shopping", "standard")]
    columns = {"ids": ids, "affinity": [0.1 * i for i in range(len(ids))]}
    defaults = {
        "scenario": "auto",
        "query": example_query(1),
        "event_time": "2026-03-01T12:00:00Z",
        "candidates": columns,
    }
    return decode_request(msgspec.json.encode(defaults | changes))


@pytest.fixture
def call(snapshot) -> HeavyCall:
    """One call of 5 survivors."""
    heavy, index = snapshot.releases["standard"].heavy, snapshot.releases["standard"].index
    query = heavy.encoders.query_rows.encode({"country": "DE"}, event_time_us=0).encoded
    ads = index.heavy_ads.take(np.arange(5))
    return HeavyCall(
        heavy=heavy,
        query=query,
        ads=Encoded(np.array(ads.ids), np.array(ads.floats)),
        pair=heavy.no_pair.take(np.zeros(5, np.intp)),
        members=np.arange(5),
    )


def test_answers_are_those_of_this_process(elsewhere, snapshot, heavy_settings, heavy_host, example_query):
    assert elsewhere.releases["standard"].heavy.serving is None
    with asking(heavy_settings, heavy_host) as runner:
        for scenario in ("auto", "shopping", "standard"):
            request = body(example_query, scenario=scenario)
            remote = rank(request, elsewhere, heavy_settings, Deadline(), runner=runner).response
            here = rank(request, snapshot, heavy_settings, Deadline()).response
            assert remote.degraded is None
            assert remote.ads == here.ads
            assert remote.release == here.release


def test_calls_at_the_same_time_do_not_mix(heavy_settings, heavy_host, call):
    calls = [
        HeavyCall(heavy=call.heavy, query=call.query, ads=call.ads.take(rows), pair=call.pair.take(rows), members=rows)
        for rows in (np.arange(1 + number % 5) for number in range(40))
    ]
    with asking(heavy_settings, heavy_host) as runner:
        futures = [runner.submit(one, Deadline.after_ms(60_000)) for one in calls]
        for one, future in zip(calls, futures, strict=True):
            np.testing.assert_allclose(future.result(60), run_calls([one])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngarbage", "answer cannot be read"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops", "500: oops"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "302"),
        (b"no HTTP at all", "ProtocolError|BadStatusLine|HTTPException"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\nshort", "IncompleteRead|ProtocolError|within"),
        (b"", "ProtocolError|RemoteDisconnected|Reset"),
    ],
)
def test_garbage_is_told_and_leaves_the_light_order(servers, elsewhere, heavy_settings, example_query, answer, detail):
    request = body(example_query)
    light = rank(body(example_query, stage="light"), elsewhere, heavy_settings, Deadline()).response
    with servers.canned(answer) as host, asking(heavy_settings, host.url, heavy_timeout_ms=2_000.0) as runner:
        response = rank(request, elsewhere, heavy_settings, Deadline(), runner=runner).response
    assert response.degraded.reason == "failed"
    assert re.search(detail, response.degraded.detail)
    assert response.ads == light.ads


def test_a_stalled_host_costs_a_request_its_deadline_and_no_more(servers, elsewhere, heavy_settings, example_query):
    with servers.canned(None) as host, asking(heavy_settings, host.url, heavy_timeout_ms=60_000.0) as runner:
        deadline = Deadline.after_ms(300)
        response = rank(body(example_query), elsewhere, heavy_settings, deadline, runner=runner).response
        assert response.degraded.reason == "deadline"


def test_a_host_that_is_down_is_left_alone_after_some_failures_and_found_again(servers, heavy_settings, world, call):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with asking(heavy_settings, f"http://127.0.0.1:{port}", heavy_failures=2, heavy_pause_s=0.2) as runner:
        for _ in range(2):
            with pytest.raises(Exception, match="NewConnectionError"):
                runner.submit(call, Deadline()).result(30)
        with pytest.raises(HeavyUnavailableError, match="failed 2 times in a row, it is asked again in 0"):
            runner.submit(call, Deadline())
        app = create_heavy_app(heavy_settings)
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            servers.wait_until(lambda: app.state.host.is_ready)
            time.sleep(0.3)
            np.testing.assert_allclose(
                runner.submit(call, Deadline()).result(30), run_calls([call])[0], rtol=1e-5, atol=1e-6
            )
            assert len(runner.submit(call, Deadline()).result(30)) == 5
        finally:
            server.should_exit = True
            thread.join(30)


def test_short_deadlines_are_no_failures_of_the_host(servers, heavy_settings, call):
    with (
        servers.canned(None) as host,
        asking(heavy_settings, host.url, heavy_failures=1, heavy_timeout_ms=60_000.0) as runner,
    ):
        for _ in range(3):
            with pytest.raises(RemoteError, match="did not answer within"):
                runner.submit(call, Deadline.after_ms(30)).result(30)


def test_after_a_pause_one_call_tries():
    pause = Pause(failures=2, pause_s=0.05)
    pause.check()
    pause.note("refused")
    pause.check()
    pause.note("refused")
    with pytest.raises(HeavyUnavailableError):
        pause.check()
    time.sleep(0.06)
    pause.check()
    with pytest.raises(HeavyUnavailableError):
        pause.check()
    pause.note(None)
    pause.check()
    pause.check()


def test_too_many_waiting_calls_are_refused_at_once(servers, heavy_settings, call):
    with servers.canned(None) as host, asking(heavy_settings, host.url, heavy_connections=1, heavy_queue=1) as runner:
        futures = [runner.submit(call, Deadline()) for _ in range(2)]
        with pytest.raises(QueueFullError, match="calls that wait for the heavy host: 2"):
            runner.submit(call, Deadline())
        assert runner.num_waiting() == 1
        for future in futures:
            future.cancel()


def test_a_call_survives_the_wire(call):
    back = call_of(decode_call(encode_call(call, timeout_ms=5.0)), call.heavy, max_survivors=10)
    for side in ("query", "ads", "pair"):
        for kind in ("ids", "floats"):
            np.testing.assert_array_equal(getattr(getattr(back, side), kind), getattr(getattr(call, side), kind))
    logits = run_calls([call])[0]
    np.testing.assert_array_equal(decode_logits(encode_logits(call, logits), call), logits)


def changed(call, **changes):
    return msgspec.msgpack.encode(msgspec.msgpack.decode(encode_call(call, timeout_ms=None)) | changes)


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"ads": {"count": 11, "ids": b"", "floats": b""}}, "ads.count", "expected 1 to 10 rows, got 11"),
        ({"ads": {"count": 0, "ids": b"", "floats": b""}}, "ads.count", "got 0"),
        ({"ads": {"count": 2, "ids": b"abc", "floats": b""}}, "ads.floats|pair.count", "expected"),
        ({"query": {"count": 1, "ids": b"abc", "floats": b""}}, "query", "expected"),
        ({"query": {"count": 2, "ids": b"", "floats": b""}}, "query.count", "expected 1, got 2"),
        ({"pair": None}, "pair", "expected rows"),
        ({"version": 3}, "body", "Expected `str`"),
        ({"more": 3}, "body", "unknown field"),
    ],
)
def test_wrong_calls_are_refused(call, changes, field, message):
    with pytest.raises(RequestError, match=message) as refused:
        call_of(decode_call(changed(call, **changes)), call.heavy, max_survivors=10)
    assert re.match(field, refused.value.field)
    with pytest.raises(InputError, match="not valid"):
        decode_call(b"\xc1")


def test_answers_to_another_call_are_refused(call):
    version, tasks, size = call.heavy.version, call.heavy.tasks, 5 * len(call.heavy.tasks)
    good = HeavyAnswer(version=version, tasks=tasks, logits=np.zeros(size, np.float32).tobytes())
    assert decode_logits(msgspec.msgpack.encode(good), call).shape == (5, len(tasks))
    nan = np.full(size, np.nan, np.float32).tobytes()
    for changes, message in (
        ({"version": "other"}, "answered for other"),
        ({"tasks": ("x",)}, "answered for"),
        ({"logits": b"1234"}, "holds 4 bytes of logits, expected"),
        ({"logits": nan}, "not finite"),
    ):
        with pytest.raises(ArtifactError, match=message):
            decode_logits(msgspec.msgpack.encode(msgspec.structs.replace(good, **changes)), call)


def post(url, content, token="päss"):
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    return urllib3.request("POST", url + "/heavy", body=content, headers=headers)


def test_the_host_refuses_what_it_should(heavy_host, call):
    good = encode_call(call, timeout_ms=None)
    assert post(heavy_host, good).status == 200
    assert post(heavy_host, good, token=None).status == 401
    assert post(heavy_host, good, token="wrong").status == 401
    for twice in (("wrong", "päss"), ("päss", "wrong"), ("päss", "päss")):
        with closing(http.client.HTTPConnection(urllib3.util.parse_url(heavy_host).netloc)) as connection:
            connection.putrequest("POST", "/heavy")
            for token in twice:
                connection.putheader("Authorization", f"Bearer {token}".encode())
            connection.putheader("Content-Length", str(len(good)))
            connection.endheaders(good)
            assert connection.getresponse().status == 401
    assert post(heavy_host, b"\xc1").status == 400
    assert post(heavy_host, changed(call, more=1)).status == 422
    unknown = post(heavy_host, changed(call, version="other"))
    assert unknown.status == 503
    assert b"the heavy ranker 'other' is not run here" in unknown.data
    ids = np.full((5, call.ads.ids.shape[1]), 2**30, np.int32).tobytes()
    beyond = changed(call, ads={"count": 5, "ids": ids, "floats": call.ads.floats.tobytes()})
    assert post(heavy_host, beyond).status == 422
    assert post(heavy_host, changed(call, timeout_ms=1e-6)).status == 503


def test_the_host_counts_its_calls_and_logs_slow_and_refused_ones_by_request(heavy_settings, servers, call, caplog):
    app = create_heavy_app(heavy_settings.model_copy(update={"slow_ms": 1e-6, "log_lines_per_s": 100.0}))
    with servers.serving(app) as url:
        servers.wait_until(lambda: app.state.host.is_ready)
        caplog.clear()
        caplog.set_level("INFO")
        caplog.handler.setFormatter(JsonLines())
        with asking(heavy_settings, url) as runner:
            with logging_request("é\n1"):
                future = runner.submit(call, Deadline.after_ms(None))
            np.testing.assert_array_equal(future.result(), run_calls([call])[0])
        assert post(url, b"\xc1").status == 400
        metrics = urllib3.request("GET", f"{url}/metrics").data.decode()
    for stage, count in {"decode": 1, "heavy": 1, "total": 1, "light": 0}.items():
        assert f'adsieve_stage_seconds_count{{stage="{stage}"}} {count:.1f}' in metrics
    lines = [record for record in caplog.records if record.name == "service.request_log"]
    assert [record.getMessage()[:12] for record in lines] == ["a slow call:", "a request wa"]
    told = [msgspec.json.decode(line) for line in caplog.text.splitlines()]
    assert [line.get("request_id") for line in told if line["logger"] == "service.request_log"] == ["é\n1", None]
    assert lines[0].fields["rows"] == len(call.ads)
    assert {"decode", "heavy", "total"} <= lines[0].fields["timing_ms"].keys()


def test_ids_of_requests_survive_a_header():
    for request_id in ("r-1", "é\n1", "a" * 256, "日本 %41", ""):
        header = request_id_header(request_id)
        assert header.isascii()
        assert header.isprintable()
        assert request_id_of(header) == request_id
    assert request_id_of(None) is None
    assert len(request_id_of("x" * 9_999)) == 256
