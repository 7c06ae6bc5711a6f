"""``adsieve serve --workers 2``, as real processes: what they count, how one is lost, how they are renewed and end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from indexing.store import DirectoryStore
from service.process_state import ProcessBoard, ProcessState
from service.serving_metrics import TELL_S

SERVE = "import typer, service.cli; typer.run(service.cli.serve)"
TOKEN = "very-secret"


class Service:
    """A running ``adsieve serve``; each request goes over a connection of its own, so to any worker."""

    def __init__(self, store: Path, arguments: list[str], environment: dict[str, str], directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = directory / "serve.log"
        self.counts = directory / "tmp"
        self.counts.mkdir()
        command = [sys.executable, "-c", SERVE, "--store", str(store), "--port", str(self.port), *arguments]
        engines = {"ADSIEVE_QUERY_ENGINE": "onnxruntime_cpu", "ADSIEVE_HEAVY_ENGINE": "onnxruntime_cpu"}
        variables = {"OMP_NUM_THREADS": "1", "ADSIEVE_ENGINE_THREADS": "1", "TMPDIR": str(self.counts)} | engines
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=os.environ | variables | environment, stderr=log, stdout=log)

    def request(self, method: str, path: str, **options) -> httpx.Response:
        return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=30, **options)

    def is_ready(self) -> bool:
        try:
            return self.request("GET", "/health/ready").status_code == 200
        except httpx.TransportError:
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()) from None
            return False

    def metrics(self) -> dict[str, float]:
        lines = self.request("GET", "/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def workers(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [pid for pid in map(int, text.split()) if "spawn_main" in command_line(pid)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.05)


@contextmanager
def serving(store: Path, directory: Path, *arguments: str, **environment: str):
    service = Service(store, list(arguments), environment, directory)
    try:
        wait_until(service.is_ready)
        yield service
    finally:
        service.process.kill()
        service.process.wait()


@pytest.fixture(scope="module")
def service_store(artifacts, tmp_path_factory):
    """A store of this module's own."""
    store = DirectoryStore(tmp_path_factory.mktemp("workers") / "store")
    for scenario in ("shopping", "standard"):
        publish(store, artifacts, scenario, 0)
    return store


@pytest.fixture(scope="module")
def service(service_store, tmp_path_factory):
    """Two workers."""
    root = tmp_path_factory.mktemp("served")
    options = {"ADSIEVE_ADMIN_TOKEN": TOKEN, "ADSIEVE_POLL_INTERVAL_S": "0.2", "ADSIEVE_BODY_TIMEOUT_S": "60"}
    with serving(service_store.root, root, "--workers", "2", "--log-format", "json", **options) as service:
        wait_until(lambda: service.metrics()["adsieve_ready_processes"] == 2)
        service.store = service_store
        yield service


def publish(store, artifacts: Path, scenario: str, generation: int):
    return store.publish(
        two_tower=artifacts / f"{scenario}-{generation}",
        heavy=artifacts / "heavy",
        index=artifacts / f"{scenario}-{generation}-index",
    )


@pytest.fixture(scope="module")
def body(example_query):
    return {"scenario": "shopping", "query": example_query(1), "candidates": ["shopping-1", "shopping-2", "nobody"]}


ANSWERED = 'adsieve_rank_requests_total{status="200"}'


def test_any_worker_tells_the_sums_of_all(service, body):
    before = service.metrics().get(ANSWERED, 0)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: service.request("POST", "/rank", json=body), range(40)))
    assert {answer.status_code for answer in answers} == {200}
    wait_until(lambda: all(service.metrics()[ANSWERED] == before + 40 for _ in range(8)))  # each adds up now and then
    for _ in range(8):
        metrics = service.metrics()
        assert metrics[ANSWERED] == before + 40
        assert metrics['adsieve_stage_seconds_count{stage="light"}'] == before + 40
        assert metrics['adsieve_dropped_ads_total{reason="unknown"}'] == before + 40
        assert metrics["adsieve_processes"] == metrics["adsieve_ready_processes"] == 2
        assert metrics["adsieve_rank_in_flight"] == 0
    counts = list(service.counts.glob("adsieve-counts-*/counter_*.db"))
    assert len(counts) == 2
    assert [path.parent.stat().st_mode & 0o777 for path in counts] == [0o700] * 2


def test_no_command_line_holds_a_token(service):
    assert len(service.workers()) == 2
    for pid in (service.process.pid, *service.workers()):
        assert command_line(pid)
        assert TOKEN not in command_line(pid)
    assert service.request("POST", "/admin/reload").status_code == 401
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert service.request("POST", "/admin/reload", headers=headers).status_code == 200


def test_who_asks_for_a_websocket_is_answered_as_any_other(service):
    """There is none; what ends slow clients knows connections of HTTP alone."""
    workers = service.workers()
    wanted = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    wanted["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert [service.request("GET", path, headers=wanted).status_code for path in ("/rank", "/nowhere")] == [405, 404]
    assert service.request("GET", "/health/ready", headers=wanted).json()["ready"] is True
    assert service.workers() == workers


def held(service: Service, opened: int) -> list[int]:
    """Connections of each worker, fewest first, once so many are held in all."""

    def counts() -> list[int]:
        found = [psutil.Process(pid).net_connections("tcp") for pid in service.workers()]
        return sorted(sum(one.status == psutil.CONN_ESTABLISHED for one in connections) for connections in found)

    wait_until(lambda: sum(counts()) == opened)
    return counts()


def test_connections_fall_evenly_on_workers(service):
    held(service, 0)
    with ExitStack() as stack:
        for number in range(21):
            stack.enter_context(connected(service.port))
            held(service, number + 1)  # at leisure: on a busy machine it may be late with one, and not with the next
        fewest, most = held(service, 21)
        assert 1 <= most - fewest <= 3
    held(service, 0)


def test_a_killed_worker_is_started_again_and_what_it_counted_stays(service, body):
    time.sleep(2 * TELL_S)  # a killed worker takes with it what it has not added up yet
    before = service.metrics().get(ANSWERED, 0)
    killed, other = service.workers()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in service.workers())
    answers = [service.request("POST", "/rank", json=body) for _ in range(10)]
    assert {answer.status_code for answer in answers} == {200}
    wait_until(lambda: service.metrics()[ANSWERED] == before + 10)
    wait_until(lambda: service.metrics()["adsieve_ready_processes"] == 2)
    assert other in service.workers()
    assert len(service.workers()) == 2
    for _ in range(4):
        assert service.metrics()[ANSWERED] == before + 10
    assert not list(service.counts.glob(f"adsieve-counts-*/gauge_live*_{killed}.db"))
    assert list(service.counts.glob(f"adsieve-counts-*/counter_{killed}.db"))


def test_what_a_new_release_replaced_is_told_by_no_worker(service, artifacts):
    def releases() -> set[str]:
        pattern = re.compile(r'adsieve_release_loaded_timestamp_seconds\{.*release="([^"]+)".*scenario="shopping"')
        matches = [pattern.match(name) for name in service.metrics()]
        return {match[1] for match in matches if match}

    old = service.store.current("shopping").release_id
    assert releases() == {old}
    new = publish(service.store, artifacts, "shopping", 1).release_id
    wait_until(lambda: releases() == {new})
    wait_until(lambda: all(releases() == {new} for _ in range(6)))
    assert service.metrics()['adsieve_engine_info{engine="onnxruntime_cpu",model="heavy",scenario="shopping"}'] == 1


def test_sighup_renews_every_worker_and_no_request_fails(service, body):
    before = set(service.workers())
    service.process.send_signal(signal.SIGHUP)
    statuses = []

    def are_renewed() -> bool:
        statuses.append(service.request("POST", "/rank", json=body).status_code)
        return before.isdisjoint(service.workers()) and len(service.workers()) == 2

    wait_until(are_renewed)
    assert set(statuses) == {200}


def test_sigterm_answers_what_is_in_flight_and_refuses_what_is_new(service, body):
    text = json.dumps(body).encode()
    head = f"POST /rank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    (counts,) = service.counts.glob("adsieve-counts-*")
    workers = service.workers()
    with connected(service.port) as connection:
        connection.sendall(head.encode() + text[:10])
        wait_until(lambda: service.metrics()["adsieve_rank_in_flight"] == 1)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not can_connect(service.port))
        connection.sendall(text[10:])
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert service.process.wait(30) == 0
    assert not any(command_line(pid) for pid in workers)
    assert not counts.exists()
    for line in service.log.read_text().splitlines():
        assert {"time", "level", "logger", "process", "message"} <= json.loads(line).keys()
    assert "Traceback" not in service.log.read_text()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_heavy_hosts_have_workers_too_and_none_outlives_a_killed_supervisor(service_store, tmp_path):
    with serving(service_store.root, tmp_path, "--role", "heavy", "--workers", "2") as service:
        wait_until(lambda: service.metrics()["adsieve_ready_processes"] == 2)
        version = service_store.current("shopping").heavy
        assert service.metrics()[f'adsieve_heavy_engine_info{{engine="onnxruntime_cpu",version="{version}"}}'] == 1
        statuses = [service.request("POST", "/heavy", content=b"\xc1").status_code for _ in range(6)]
        assert statuses == [400] * 6
        wait_until(lambda: service.metrics().get('adsieve_problems_total{kind="not-parseable"}') == 6)
        workers = service.workers()
        service.process.kill()
        service.process.wait()
        wait_until(lambda: not any("spawn_main" in command_line(pid) for pid in workers))
        assert not can_connect(service.port)


def test_one_process_drains_then_ends_and_cuts_off_what_takes_too_long(service_store, tmp_path, body):
    limits = {"ADSIEVE_DRAIN_S": "4", "ADSIEVE_SHUTDOWN_S": "1", "ADSIEVE_BODY_TIMEOUT_S": "600"}
    with serving(service_store.root, tmp_path, **limits) as service, connected(service.port) as connection:
        connection.sendall(b"POST /rank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 99\r\n\r\n{")
        wait_until(lambda: service.metrics()["adsieve_rank_in_flight"] == 1)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not service.is_ready())
        assert service.request("GET", "/health/ready").json()["ready"] is False
        assert service.request("POST", "/rank", json=body).status_code == 200
        wait_until(lambda: not can_connect(service.port))
        assert service.process.wait(30) == 0
        assert b"200 OK" not in connection.recv(1 << 16)


def test_workers_that_cannot_begin_end_the_service(tmp_path):
    code = (
        "from service.cli import listening; from service.settings import Settings;"
        "from service.server import ServeOptions; from service.supervisor import Supervisor;"
        f"options = ServeOptions(settings=Settings(store={str(tmp_path)!r}), log_level='nonsense');"
        "Supervisor(options, listening('127.0.0.1', 0), 2).run()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "AdsieveError: a worker ended with 1 before it listened, see its log" in ended.stderr
    assert "NONSENSE" in ended.stderr


def test_states_of_processes_are_shared_while_they_live(tmp_path):
    """Of three processes, one alive, one dead, and this one."""
    code = (
        "import sys, time; from pathlib import Path; from service.process_state import ProcessBoard, ProcessState;"
        "ProcessBoard(Path(sys.argv[1])).post(ProcessState(ready=True, heavy_waiting=int(sys.argv[2])));"
        "print('posted', flush=True); time.sleep(60)"
    )
    board = ProcessBoard(tmp_path)
    board.post(ProcessState(heavy_waiting=1))
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(number)], stdout=subprocess.PIPE)
        for number in (2, 3)
    ]
    try:
        for other in others:
            assert other.stdout.readline() == b"posted\n"
        assert sorted(state.heavy_waiting for state in board.others()) == [2, 3]
        others[0].kill()
        others[0].wait()
        assert [state.heavy_waiting for state in board.others()] == [3]
        assert len(list(tmp_path.glob("*.state"))) == 2
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert ProcessBoard(None).others() == []


@pytest.mark.slow
def test_a_stalled_worker_is_killed_at_the_end_and_the_others_answer_until_then(service_store, tmp_path, body):
    with serving(service_store.root, tmp_path, "--workers", "2", ADSIEVE_SHUTDOWN_S="1") as service:
        wait_until(lambda: service.metrics()["adsieve_ready_processes"] == 2)
        stalled, _ = service.workers()
        os.kill(stalled, signal.SIGSTOP)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        assert f"worker {stalled} does not end, it is killed" in service.log.read_text()
        assert "spawn_main" not in command_line(stalled)


@pytest.mark.slow
def test_workers_killed_again_and_again_under_load_fail_only_what_they_held(service_store, tmp_path, body):
    """Each kill costs the requests of that worker, never an answer of another; and counts of its last moments alone."""
    with serving(service_store.root, tmp_path, "--workers", "2") as service:
        wait_until(lambda: service.metrics()["adsieve_ready_processes"] == 2)
        stops, statuses, answered_at, kills = threading.Event(), [], [], []

        def ask() -> None:
            while not stops.is_set():
                try:
                    statuses.append(service.request("POST", "/rank", json=body).status_code)
                    answered_at.append(time.monotonic())
                except httpx.TransportError:
                    statuses.append(0)

        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            for _ in range(4):
                os.kill(service.workers()[0], signal.SIGKILL)
                kills.append(time.monotonic())
                time.sleep(1)
                wait_until(lambda: service.metrics()["adsieve_ready_processes"] == 2)
            stops.set()
            for one in asking:
                one.result()
        assert set(statuses) <= {200, 0}
        assert statuses.count(0) <= 4 * 3
        time.sleep(2 * TELL_S)
        counted, at_risk = (
            service.metrics()[ANSWERED],
            sum(-2 * TELL_S < at - kill < 0.1 for at in answered_at for kill in kills),
        )
        assert statuses.count(200) - at_risk <= counted <= statuses.count(200) + statuses.count(0)
        assert at_risk < statuses.count(200)
        assert service.metrics()["adsieve_rank_in_flight"] == 0


STUCK = """
import threading
from types import SimpleNamespace

from service import server

server.STUCK_S = 0.1
stop = server._Stop(SimpleNamespace(should_exit=False), lambda: None, drain_s=0.1, shutdown_s=0.1)
stop.on_signal(15, None)


def a_call_that_does_not_end():
    while True:
        pass


threading.Thread(target=a_call_that_does_not_end).start()
"""


def test_a_process_that_is_stuck_beyond_its_limits_tells_where_and_ends():
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "Timeout (0:00:00.3" in ended.stderr
    assert "in a_call_that_does_not_end" in ended.stderr
