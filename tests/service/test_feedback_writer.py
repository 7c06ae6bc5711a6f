"""The feedback log under trouble: a queue that is full, disks that hang or fail, processes that are killed or many."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pydantic
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from adlogs.validate import validate_log
from contracts.records import LogPaths
from service.app import create_app
from service.deadline import Deadline
from service.feedback import FeedbackLog
from service.feedback_columns import LogColumns
from service.feedback_counts import FeedbackCounts
from service.feedback_files import FilePair, remove_leftovers
from service.feedback_rows import Served
from service.feedback_writer import FeedbackWriter
from service.ranker import rank
from service.settings import Settings
from service.wire import decode_request

SERVE = "import sys; sys.argv = ['adsieve', 'serve', *sys.argv[1:]]; from adsieve import main; main()"
CANDIDATES = [f"shopping-{i}" for i in range(1, 7)]


def make_body(example_query, request_id, **changes):
    body = {
        "request_id": request_id,
        "scenario": "shopping",
        "query": example_query(1),
        "event_time": "2026-03-01T12:00:00Z",
        "candidates": CANDIDATES,
    }
    return body | changes


@pytest.fixture
def answered(snapshot, settings, example_query):
    """A request that was ranked, and its outcome."""

    def answer(request_id, **changes):
        request = decode_request(msgspec.json.encode(make_body(example_query, request_id, **changes)))
        return request, rank(request, snapshot, settings, Deadline())

    return answer


@pytest.fixture
def served(answered):
    def serve(request_id, **changes):
        request, outcome = answered(request_id, **changes)
        return Served(
            request_id=request_id, request=request, event_time_us=outcome.event_time_us, result=outcome.result
        )

    return serve


class Trial:
    """A writer with counts of its own; time stands still unless moved."""

    def __init__(self, root, snapshot, *, open_files=FilePair, rows=10**6, seconds=60.0):
        self.root, self.now, self.registry = root, 0.0, CollectorRegistry()
        self.counts = FeedbackCounts(self.registry)
        self.writer = FeedbackWriter(
            root,
            self.counts,
            releases=lambda: snapshot.releases.values(),
            rows=rows,
            seconds=seconds,
            open_files=open_files,
            clock=lambda: self.now,
        )
        self.writer.prepare()

    def count(self, result):
        return self.registry.get_sample_value("adsieve_feedback_requests_total", {"result": result}) or 0

    def value(self, name):
        return self.registry.get_sample_value(name)

    def files(self, dataset="requests"):
        return sorted((self.root / dataset).rglob("*.parquet"), key=lambda file: file.name)

    def ids(self):
        return [name for file in self.files() for name in pq.read_table(file)["request_id"].to_pylist()]


@pytest.fixture
def trial(snapshot, tmp_path):
    return lambda **changes: Trial(tmp_path / "log", snapshot, **changes)


def hidden_files(root):
    return [path for path in Path(root).rglob("*") if path.name.startswith(".")]


def test_a_full_queue_drops_and_counts_and_nobody_waits_for_a_disk_that_hangs(trial, answered):
    go, begun = threading.Event(), threading.Event()

    def hanging(root, columns):
        begun.set()
        go.wait(60)
        return FilePair(root, columns)

    one = trial(open_files=hanging, rows=1)  # every request ends a file
    log = FeedbackLog(one.writer, one.counts, share=1.0, max_requests=5, max_rows=10**6)
    with log:
        log.offer(*answered("r-first"))
        assert begun.wait(60)
        for number in range(100):  # the disk hangs until all of these were taken up or dropped
            log.offer(*answered(f"r-{number}"))
        assert one.value("adsieve_feedback_waiting") == 5
        assert one.count("queue_full") == 95
        go.set()
    assert one.ids() == ["r-first", *(f"r-{number}" for number in range(5))]
    assert one.count("written") == 6
    assert one.value("adsieve_feedback_candidates_total") == sum(
        pq.read_metadata(file).num_rows for file in one.files("candidates")
    )


def test_threads_that_hand_over_at_once_lose_nothing(trial, answered):
    one = trial()
    request, outcome = answered("r")
    log = FeedbackLog(one.writer, one.counts, share=1.0, max_requests=10**6, max_rows=10**9)

    def hand_over(worker):
        for number in range(100):
            named = msgspec.structs.replace(outcome.response, request_id=f"r-{worker}-{number}")
            log.offer(request, msgspec.structs.replace(outcome, response=named))

    with log:
        threads = [threading.Thread(target=hand_over, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(one.ids()) == sorted(f"r-{worker}-{number}" for worker in range(4) for number in range(100))
    assert one.count("written") == 400
    for worker in range(4):
        mine = [name for name in one.ids() if name.startswith(f"r-{worker}-")]
        assert mine == [f"r-{worker}-{number}" for number in range(100)]


@pytest.mark.parametrize(
    ("field", "value"),
    [("share", 1.5), ("share", -0.1), ("queue", 0), ("rows", 0), ("seconds", 0.0), ("seconds", 100_000.0)],
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(pydantic.ValidationError, match=f"feedback_{field}"):
        Settings(store="store", **{f"feedback_{field}": value})


def test_candidates_that_wait_are_bounded_too(trial, answered):
    one = trial()
    request, outcome = answered("r-0")
    rows = outcome.result.num_ranked
    log = FeedbackLog(one.writer, one.counts, share=1.0, max_requests=100, max_rows=3 * rows)
    for _ in range(5):
        log.offer(request, outcome)
    assert one.count("queue_full") == 2
    tight = FeedbackLog(one.writer, one.counts, share=1.0, max_requests=100, max_rows=1)
    for _ in range(3):
        tight.offer(request, outcome)  # a large request alone may wait
    assert one.count("queue_full") == 4


@pytest.mark.parametrize("fails_in", ["open", "write", "finish"])
def test_a_disk_that_fails_costs_one_file_and_leaves_nothing(trial, served, fails_in, caplog):
    broken = [True]

    class Failing:
        def __init__(self, root, columns):
            self._fail("open")
            self._files = FilePair(root, columns)

        def _fail(self, step):
            if broken[0] and step == fails_in:
                raise OSError(errno.ENOSPC, "No space left on device")

        def write(self, *parts):
            self._fail("write")
            self._files.write(*parts)

        def finish(self):
            self._fail("finish")
            self._files.finish()

        def discard(self):
            self._files.discard()

    one = trial(open_files=Failing)
    for number in range(6):
        broken[0] = number < 4
        one.writer.add(served(f"r-{number}"))
        if number % 2:
            one.writer.end_file()
    assert (one.count("failed"), one.count("written")) == (4, 2)
    assert one.ids() == ["r-4", "r-5"]
    assert not hidden_files(one.root)
    assert [record.getMessage().count("No space left on device") for record in caplog.records] == [1]


def test_a_directory_that_is_gone_is_made_again(trial, served):
    one = trial()
    one.root.rmdir()
    one.writer.add(served("r-0"))
    one.writer.end_file()
    one.writer.add(served("r-1"))
    one.writer.end_file()
    assert one.count("failed") == 1
    assert one.ids() == ["r-1"]


def test_an_application_whose_log_cannot_be_written_answers_as_ever(settings, example_query, tmp_path):
    (tmp_path / "file").write_text("in the way")
    broken = settings.model_copy(update={"feedback_dir": tmp_path / "file" / "log", "feedback_rows": 1})
    with TestClient(create_app(broken)) as client:
        while client.get("/health/ready").status_code != 200:
            pass
        for number in range(5):
            assert client.post("/rank", json=make_body(example_query, f"r-{number}")).status_code == 200
        while 'adsieve_feedback_requests_total{result="failed"} 5.0' not in client.get("/metrics").text:
            time.sleep(0.01)
        assert client.get("/health/ready").status_code == 200


def test_files_end_by_rows_and_by_time(trial, served):
    one = trial(rows=12, seconds=10.0)
    num_rows = served("r").num_rows
    for number in range(6):
        one.writer.add(served(f"r-{number}"))
    assert len(one.files()) == 6 // -(-12 // num_rows)
    one.writer.end_file()
    before = len(one.files())
    one.now = 100.0
    one.writer.end_if_due()
    one.writer.add(served("r-6"))
    one.now = 109.0
    one.writer.end_if_due()
    assert len(one.files()) == before
    one.now = 110.0
    one.writer.end_if_due()
    assert len(one.files()) == before + 1
    assert one.ids() == [f"r-{number}" for number in range(7)]


def test_a_request_that_is_sent_again_is_logged_once(trial, served):
    one = trial()
    for name in ("a", "b", "a", "a", "c"):
        one.writer.add(served(name))
    one.writer.end_file()
    assert one.ids() == ["a", "b", "c"]
    assert one.count("repeated") == 2


def test_what_no_model_has_read_is_checked_before_it_is_logged(trial, served, example_query):
    one = trial()
    for name, query, affinity in (
        ("wrong-query", {"device": ["DE"]}, 1.0),
        ("wrong-pair", {}, "high"),
        ("right", {}, 2.0),
    ):
        candidates = {"ids": CANDIDATES, "affinity": [affinity] * len(CANDIDATES)}
        one.writer.add(served(name, stage="light", query=example_query(1) | query, candidates=candidates))
    one.writer.end_file()
    assert one.ids() == ["right"]
    assert one.count("invalid") == 2
    (file,) = one.files("candidates")
    assert set(pq.read_table(file)["affinity"].to_pylist()) == {2.0}


def test_cold_ads_are_left_out_and_counted(trial, snapshot, settings, example_query):
    one, lenient = trial(), settings.model_copy(update={"unknown_ads": "score", "missing_bids": "median"})
    body = make_body(example_query, "r-0", candidates=["unknown-1", *CANDIDATES, "unknown-2"], survivors=20)
    request = decode_request(msgspec.json.encode(body))
    outcome = rank(request, snapshot, lenient, Deadline())
    one.writer.add(
        Served(request_id="r-0", request=request, event_time_us=outcome.event_time_us, result=outcome.result)
    )
    one.writer.end_file()
    (file,) = one.files("candidates")
    table = pq.read_table(file)
    ranked = outcome.response.ads.ids
    assert {"unknown-1", "unknown-2"} <= set(ranked)
    assert set(table["ad_id"].to_pylist()) == set(ranked) - {"unknown-1", "unknown-2"}
    assert one.value("adsieve_feedback_cold_ads_total") == 2
    logits = dict(zip(table["ad_id"].to_pylist(), table["teacher_click"].to_pylist(), strict=True))
    answered = dict(zip(ranked, outcome.response.ads.heavy["click"], strict=True))
    for ad_id, logit in logits.items():
        assert 1 / (1 + np.exp(-logit)) == pytest.approx(answered[ad_id], rel=1e-6)


def test_a_bid_beyond_float32_stays_one_that_training_reads(trial, served):
    one = trial()
    one.writer.add(served("r-0", candidates={"ids": ["shopping-1", "shopping-2"], "bids": [1e300, 0.1]}))
    one.writer.end_file()
    (file,) = one.files("candidates")
    assert pq.read_table(file)["bid"].to_pylist() == [float(np.finfo(np.float32).max), np.float32(0.1)]


def test_the_sample_is_stable_and_a_smaller_one_lies_inside(trial):
    one = trial()
    logs = {
        share: FeedbackLog(one.writer, one.counts, share=share, max_requests=1, max_rows=1)
        for share in (0.0, 0.1, 0.3, 1.0)
    }
    ids = [f"r-{number}" for number in range(20_000)]
    sampled = {share: {name for name in ids if log.is_sampled(name)} for share, log in logs.items()}
    assert sampled[0.0] == set()
    assert sampled[1.0] == set(ids)
    assert sampled[0.1] < sampled[0.3]
    for share in (0.1, 0.3):
        assert len(sampled[share]) == pytest.approx(share * len(ids), rel=0.05)
        again = FeedbackLog(one.writer, one.counts, share=share, max_requests=1, max_rows=1)
        assert {name for name in ids if again.is_sampled(name)} == sampled[share]


def test_columns_only_grow_and_conflicts_are_named():
    text, number, other = (LogColumns({"a": kind}, {}, ("click",)) for kind in ("text", "number", "text"))
    assert text.including(other) is text
    assert text.conflicts(other) == []
    assert text.conflicts(number) == ["a"]
    assert text.including(number) is text
    wider = text.including(LogColumns({"b": "number"}, {"p": "number"}, ("conversion",)))
    assert wider == LogColumns({"a": "text", "b": "number"}, {"p": "number"}, ("click", "conversion"))


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_stay(trial, tmp_path):
    root = trial().root
    child = (
        "import sys, time; from pathlib import Path; from service.feedback_files import FilePair; "
        "from service.feedback_columns import LogColumns; "
        f"pair = FilePair(Path({str(root)!r}), LogColumns()); print('begun', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    living = FilePair(root, LogColumns())
    assert len(hidden_files(root)) == 4
    assert remove_leftovers(root) == 0
    process.kill()
    process.communicate()
    assert remove_leftovers(root) == 2
    assert len(hidden_files(root)) == 2
    living.finish()
    assert not hidden_files(root)
    assert [len(list((root / name).rglob("*.parquet"))) for name in ("requests", "candidates")] == [1, 1]


@pytest.fixture
def servers(world, tmp_path):
    """Two real servers that log into one directory."""
    environment = os.environ | {
        "ADSIEVE_ENGINE_THREADS": "1",
        "ADSIEVE_HEAVY_ENGINE": "onnxruntime_cpu",
        "ADSIEVE_FEEDBACK_DIR": str(tmp_path / "log"),
        "ADSIEVE_FEEDBACK_SECONDS": "0.2",
        "OMP_NUM_THREADS": "1",
    }
    started = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-c", SERVE, "--store", str(world.root), "--port", str(port)]
        started.append((subprocess.Popen(command, env=environment), f"http://127.0.0.1:{port}"))
    try:
        yield started
    finally:
        for process, _ in started:
            process.kill()
            process.wait()


def wait_until_ready(process, client):
    while process.poll() is None:
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise RuntimeError(f"the server ended with {process.returncode}")


def test_two_processes_share_a_log_and_one_that_is_killed_leaves_whole_files(
    servers, trial, artifacts, example_query, sealing, tmp_path
):
    one = trial()
    clients = [httpx.Client(base_url=url, timeout=30) for _, url in servers]
    for (process, _), client in zip(servers, clients, strict=True):
        wait_until_ready(process, client)
    asked = [[], []]

    def ask(which, count):
        for _ in range(count):
            name = f"{which}-{len(asked[which])}"
            answer = clients[which].post("/rank", json=make_body(example_query, name))
            assert answer.status_code == 200
            asked[which].append(name)

    while len({file.name.split("-")[1] for file in one.files("candidates")}) < 2:
        ask(0, 5)
        ask(1, 5)
    ask(0, 20)
    servers[0][0].kill()
    ask(1, 20)
    servers[1][0].send_signal(signal.SIGINT)
    for process, _ in servers:
        process.wait(60)

    found = one.ids()
    assert [name for name in found if name.startswith("1-")] == asked[1]  # a shutdown loses nothing
    killed = [name for name in found if name.startswith("0-")]
    assert killed == asked[0][: len(killed)]
    assert len(killed) > 0
    in_candidates = {name for file in one.files("candidates") for name in pq.read_table(file)["request_id"].to_pylist()}
    assert in_candidates <= set(found)
    os.symlink(artifacts / "ads", one.root / "ads")
    assert validate_log(LogPaths.under(one.root), sealing.make_schema(heavy=True)).faults == ()
    one.writer.prepare()
    assert not hidden_files(one.root)
    assert one.ids() == found
