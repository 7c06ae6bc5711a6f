"""What is told while the heavy host is waited for, wrong or down; and that no wait outlives the process."""

import socket
import threading
from types import SimpleNamespace

import msgspec
import pytest
import uvicorn
from fastapi.testclient import TestClient
from pydantic import SecretStr

from indexing.store import DirectoryStore
from service import heavy_watch
from service.api import Degraded
from service.app import create_app
from service.deadline import Deadline
from service.follower import Follower
from service.heavy_host import HeavyHost
from service.heavy_role import create_heavy_app
from service.heavy_watch import HeavyWatch, shown_host
from service.overlays import Overlays
from service.ranker import rank
from service.remote_heavy import NotRunError, RemoteRunner
from service.stopping import StoppingError
from service.telemetry import Telemetry
from service.wire import decode_request
from service.workers import Workers

NOT_SERVING = b'{"type":"urn:adsieve:problem:not-serving","title":"x","status":503,"detail":"it is not run here"}'


@pytest.fixture
def not_serving(servers):
    """A heavy host that runs nothing."""
    with servers.canned(servers.http(503, NOT_SERVING, Connection="close")) as host:
        yield host.url


@pytest.fixture
def nobody():
    """A socket on which nobody listens yet."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


def test_a_host_that_lacks_the_ranker_is_told_while_it_is_waited_for_and_stopping_ends_the_wait(
    own_world, own_settings, not_serving, servers, monkeypatch
):
    monkeypatch.setattr(heavy_watch, "PATIENCE_S", 3_600.0)
    settings = own_settings.model_copy(update={"heavy_url": not_serving})
    with Workers(settings, lambda *_: None, remote=True) as workers:
        telemetry = Telemetry()
        follower = Follower(own_world.store, settings, telemetry, workers=workers)

        def metrics():
            return telemetry.exposition()[0].decode()

        follower.check_heavy()
        assert "adsieve_heavy_host_up{" not in metrics()  # nobody knows yet
        polling = threading.Thread(target=follower.poll)
        polling.start()
        try:
            servers.wait_until(lambda: "heavy" in follower.faults)
            follower.check_heavy()
            assert f'adsieve_heavy_host_up{{host="{shown_host(not_serving)}"}} 0.0' in metrics()
            error = follower.faults["heavy"].error
            release = own_world.store.current("shopping")
            assert f"release {release.release_id} waits for its heavy ranker {release.heavy}: " in error
            assert "it is not run here" in error
            assert not follower.is_ready
        finally:
            follower.stop()
            polling.join(60)
        assert not polling.is_alive()
        assert (follower.snapshot.releases, follower.failures) == ({}, {})  # nothing is refused for that
        follower.poll()  # and nothing is loaded any more
        assert follower.snapshot.releases == {}
        follower.close()


class Clock:
    """Time that passes where somebody waits."""

    def __init__(self):
        self.now, self.stops = 1.0, False

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        return self.stops

    def is_set(self):
        return self.stops


def test_all_releases_share_one_patience(snapshot, settings, monkeypatch):
    clock, asked = Clock(), []

    def replayed(loaded, *_):
        asked.append(loaded.scenario)
        return Degraded(stage="heavy", reason="failed", detail="not there")

    monkeypatch.setattr(heavy_watch, "time", clock)
    monkeypatch.setattr(heavy_watch, "replayed", replayed)
    watch = HeavyWatch(settings, SimpleNamespace(heavy=None, is_remote=True, remote=None), clock)
    monkeypatch.setattr(HeavyWatch, "runner", object())
    for loaded in snapshot.releases.values():
        watch.wait_for(loaded)
    assert clock.now == pytest.approx(1 + heavy_watch.PATIENCE_S, abs=2 * heavy_watch.PAUSE_S)
    assert asked.count("shopping") > 10
    assert asked.count("standard") == 1
    assert watch.fault([]) is None
    watch.begin()
    watch.wait_for(snapshot.releases["standard"])
    assert asked.count("standard") > 10
    clock.stops = True
    watch.begin()
    with pytest.raises(StoppingError, match="the process stops"):
        watch.wait_for(snapshot.releases["standard"])


def heavy_faults(client):
    return [fault["error"] for fault in client.get("/health/ready").json()["faults"] if fault["what"] == "heavy"]


def test_a_host_that_is_down_is_told_everywhere_until_it_is_back(
    settings, nobody, servers, example_query, tmp_path, monkeypatch
):
    monkeypatch.setattr(heavy_watch, "PATIENCE_S", 0.1)
    monkeypatch.setattr("service.app.CHECK_S", 0.05)
    url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    changes = {"heavy_url": url, "heavy_failures": 2, "heavy_pause_s": 0.3, "local": tmp_path / "local"}
    up = f'adsieve_heavy_host_up{{host="{shown_host(url)}"}} '
    body = {"scenario": "standard", "query": example_query(1), "candidates": ["standard-1", "standard-2"]}
    with TestClient(create_app(settings.model_copy(update=changes))) as client:
        servers.wait_until(lambda: client.get("/health/ready").status_code == 200)
        servers.wait_until(lambda: any("left alone for a while" in error for error in heavy_faults(client)))
        assert client.get("/health/ready").status_code == 200
        assert "Connection refused" in heavy_faults(client)[0]
        servers.wait_until(lambda: f"{up}0.0" in client.get("/metrics").text)
        details = set()

        def told():
            details.add(client.post("/rank", json=body).json()["degraded"]["detail"])
            return any("its last error: " in one and "refused" in one.partition("its last error")[2] for one in details)

        servers.wait_until(told)
        heavy = create_heavy_app(settings)
        server = uvicorn.Server(uvicorn.Config(heavy, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [nobody]})
        thread.start()
        try:
            servers.wait_until(lambda: heavy_faults(client) == [])  # though nobody asks for a ranking
            servers.wait_until(lambda: f"{up}1.0" in client.get("/metrics").text)
            assert client.post("/rank", json=body).json()["degraded"] is None
        finally:
            server.should_exit = True
            thread.join(30)


def test_a_wrong_token_is_told(settings, servers, tmp_path, monkeypatch):
    monkeypatch.setattr(heavy_watch, "PATIENCE_S", 0.1)
    heavy = create_heavy_app(settings.model_copy(update={"heavy_token": SecretStr("right")}))
    with servers.serving(heavy) as url:
        wrong = {"heavy_url": url, "heavy_token": SecretStr("wrong"), "local": tmp_path / "local"}
        with TestClient(create_app(settings.model_copy(update=wrong))) as client:
            servers.wait_until(lambda: client.get("/health/ready").status_code == 200)
            assert "401" in heavy_faults(client)[0]
            assert "ADSIEVE_HEAVY_TOKEN" in heavy_faults(client)[0]


def test_a_host_without_one_version_is_not_left_alone(settings, snapshot, not_serving, example_query):
    body = {"scenario": "standard", "query": example_query(1), "candidates": ["standard-1", "standard-2"]}
    request = decode_request(msgspec.json.encode(body))
    with RemoteRunner(settings.model_copy(update={"heavy_url": not_serving, "heavy_failures": 2})) as runner:
        for _ in range(5):
            degraded = rank(request, snapshot, settings, Deadline(), runner=runner).response.degraded
            assert degraded.detail.startswith(NotRunError.__name__)
        version = snapshot.releases["standard"].heavy.version
        assert "it is not run here" in runner.fault([version]).error
        assert runner.fault(["another"]) is None


def test_no_password_is_shown():
    assert shown_host("https://user:secret@heavy:8001/path") == "heavy:8001"


def test_a_heavy_host_of_an_empty_store_says_so_until_there_is_something_to_run(tmp_path, artifacts, settings):
    store = DirectoryStore(tmp_path / "store")
    host = HeavyHost(store, settings.model_copy(update={"store": store.root}))
    host.poll()
    assert not host.is_ready
    assert host.failures == {"": f"{store.root}: no release names a heavy ranker yet, waiting for one"}
    store.publish(two_tower=artifacts / "shopping-0", heavy=artifacts / "heavy", index=artifacts / "shopping-0-index")
    host.poll()
    assert host.is_ready
    assert host.failures == {}


def test_stopping_ends_the_wait_for_updates_that_another_process_writes(own_world, own_settings, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(Overlays, "_apply", lambda *_: None)
    monkeypatch.setattr("service.overlays.LiveIndex.open", lambda *_: waits.set())  # it never has what is there
    follower = Follower(own_world.store, own_settings.model_copy(update={"update_wait_s": 3_600.0}), Telemetry())
    polling = threading.Thread(target=follower.poll)
    polling.start()
    try:
        assert waits.wait(60)
    finally:
        follower.stop()
        polling.join(60)
    assert not polling.is_alive()
    assert (follower.snapshot.releases, follower.failures) == ({}, {})
    follower.close()
