"""What a process has on its GPU: counted over releases, told in /metrics and /releases, engines that come later."""

import logging

import msgspec
import pytest
from fastapi.testclient import TestClient

from engines.device_memory import MIB
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.plan_builds import PlanBuilds
from engines.protocol import EngineNotNowError
from service import device_light
from service.app import create_app
from service.device_engines import DeviceEngines
from service.follower import Follower
from service.status import releases
from service.telemetry import Telemetry


def follower_of(world, settings, **changes):
    settings = settings.model_copy(update={"light_device": "cuda"} | changes)
    return Follower(world.store, settings, Telemetry(), devices=DeviceEngines(settings, device="cpu"))


def test_old_and_new_are_counted_while_a_release_is_exchanged(own_world, own_settings, monkeypatch):
    follower = follower_of(own_world, own_settings)
    follower.poll()
    memory, during = follower.devices.gpu.memory, []
    before = memory.held()
    assert before["vectors"] > 2 * MIB
    check = device_light.check_device_light
    monkeypatch.setattr(
        "service.device_light.check_device_light", lambda loaded: (during.append(memory.used_bytes), check(loaded))
    )
    for _ in range(3):
        own_world.publish("standard", 1)
        follower.poll()
        assert memory.held() == before
    assert len(during) == 3
    assert all(used > sum(before.values()) for used in during)


def test_what_finds_no_room_runs_on_the_cpu_and_says_so(own_world, own_settings, caplog):
    whole = follower_of(own_world, own_settings)
    whole.poll()
    limit = whole.devices.gpu.memory.used_bytes // MIB - 1  # one of two indexes fits
    follower = follower_of(own_world, own_settings, device_memory_mib=limit)
    with caplog.at_level(logging.WARNING):
        follower.poll()
    assert "runs on the CPU: vectors needs" in caplog.text
    assert follower.failures == {}
    told = releases(follower)
    assert sorted(engines["light"] for engines in told.engines.values()) == ["cpu", "cuda"]
    assert told.device.limit_bytes == limit * MIB >= sum(told.device.held.values()) > 0


def test_engines_and_memory_are_told(own_world, own_settings, example_query):
    settings = own_settings.model_copy(update={"device_memory_mib": 512})
    app = create_app(settings)
    with TestClient(app) as client:
        while not client.get("/health/ready").json()["ready"]:
            pass
        told = client.get("/releases").json()
        app.state.follower.devices.gpu.memory.hold(app, "vectors", 5 * MIB)
        lines = [line.rpartition(" ") for line in client.get("/metrics").text.splitlines()]
    metrics = {name: float(value) for name, _, value in lines if not name.startswith("#")}
    assert told["engines"]["standard"] == {"query_tower": "onnxruntime_cpu", "light": "cpu", "heavy": "onnxruntime_cpu"}
    assert told["device"] == {"held": {}, "limit_bytes": 512 * MIB, "plans_waiting": 0}
    assert metrics['adsieve_engine_info{engine="cpu",model="light",scenario="standard"}'] == 1
    assert metrics['adsieve_device_memory_bytes{what="vectors"}'] == 5 * MIB
    assert metrics["adsieve_device_memory_limit_bytes"] == 512 * MIB


class LaterEngine:
    """An engine whose plan is being built at first."""

    def __init__(self):
        self.is_built = False

    def __call__(self, path, *, gpu, **options):
        if not self.is_built:
            raise EngineNotNowError(f"{path}: its plan for sm90 is being built")
        engine = OnnxRuntimeEngine(path, threads=1)
        engine.name = "tensorrt"
        return engine


@pytest.mark.parametrize("choice", ["tensorrt", "auto"])
def test_another_engine_serves_until_a_plan_is_built(own_world, own_settings, monkeypatch, choice, caplog):
    later, plans = LaterEngine(), PlanBuilds()
    monkeypatch.setattr("engines.tensorrt_gpu.open_tensorrt", later)
    monkeypatch.setattr("towers.serving.engines_here", lambda: ("onnxruntime_cpu", "tensorrt"))
    monkeypatch.setattr("heavy_ranker.serving_engines.engines_here", lambda: ("onnxruntime_cpu", "tensorrt"))
    monkeypatch.setattr("engines.select.median_ms", lambda call, seconds: float(not later.is_built))
    settings = own_settings.model_copy(update={"query_engine": choice, "heavy_engine": choice, "light_device": "cpu"})
    devices = DeviceEngines(settings, plans)
    follower = Follower(own_world.store, settings, Telemetry(), devices=devices)
    with caplog.at_level(logging.WARNING):
        follower.poll()
    assert follower.failures == {}
    assert ("meanwhile" in caplog.text) == (choice == "tensorrt")
    before = follower.snapshot.releases["standard"]
    assert (before.tower.engine, before.heavy.engine) == ("onnxruntime_cpu", "onnxruntime_cpu")
    follower.poll()
    assert follower.snapshot.releases["standard"] is before
    later.is_built = True
    monkeypatch.setattr("engines.select.median_ms", lambda call, seconds: 1.0)
    if choice == "auto":
        monkeypatch.setattr("towers.serving.engines_here", lambda: ("tensorrt", "onnxruntime_cpu"))
        monkeypatch.setattr("heavy_ranker.serving_engines.engines_here", lambda: ("tensorrt", "onnxruntime_cpu"))
    plans.count += 2
    follower.poll()
    after = follower.snapshot.releases
    assert {one.tower.engine for one in after.values()} == {"tensorrt"}
    assert after["standard"].heavy is after["shopping"].heavy
    assert after["standard"].heavy.engine == "tensorrt"
    assert msgspec.to_builtins(releases(follower).engines["shopping"])["query_tower"] == "tensorrt"
    assert follower.faults == {}
