"""A tiny true store: two scenarios, real bundles with ONNX graphs, real indexes, real releases."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.release import Release
from indexing.config import IndexConfig
from indexing.live import LiveIndex
from indexing.nightly import build_index
from indexing.store import DirectoryStore
from loading import load
from service.releases import Snapshot, load_snapshot
from service.settings import Settings

SCENARIOS = ("shopping", "standard")
NUM_ADS = {"shopping": 40, "standard": 3_000}
EVENT_TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="session")
def sealing() -> ModuleType:
    """Makes bundles."""
    return load("service/sealing.py")


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """Runs servers of applications, and ones that answer with given bytes."""
    return load("service/servers.py")


@pytest.fixture(autouse=True)
def own_engine_memory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test finds about engines is not remembered for the next, nor for the user; nor do two wait for another."""
    directory = tmp_path_factory.getbasetemp() / "engines" / os.urandom(4).hex()
    monkeypatch.setattr("service.engine_memory.cache_directory", lambda: directory)
    monkeypatch.setattr("service.console_ranking.user_caches", lambda: directory)


def make_ads(scenario: str, rng: np.random.Generator) -> pa.Table:
    """Ads with every peculiarity: paused, no bid, no objective, missing features, ids beyond ASCII."""
    count = NUM_ADS[scenario]
    ids = [f"{scenario}-{i}" if i % 7 else f"{scenario}-ü広告-{i}" for i in range(count)]
    return pa.table(
        {
            "ad_id": ids,
            "valid_from": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
            "scenario": [scenario] * count,
            "status": ["paused" if i % 11 == 3 else "active" for i in range(count)],
            "advertiser_id": [f"advertiser-{i % 5}" for i in range(count)],
            "bid": [None if i % 13 == 5 else round(float(bid), 3) for i, bid in enumerate(rng.uniform(0.1, 3, count))],
            "objective": [("impression", "click", "conversion", None)[i % 4] for i in range(count)],
            "ad_key": [None if i % 9 == 8 else f"key-{i}" for i in range(count)],
            "tags": pa.array([[f"t{i % 3}", f"t{i % 4}"][: i % 3] for i in range(count)], pa.list_(pa.string())),
            "price": pa.array([None if i % 6 == 1 else float(i) for i in range(count)], pa.float64()),
        }
    )


def make_query(seed: int) -> dict:
    return {
        "country": ("DE", "FR", "日本", "XX", None)[seed % 5],
        "device": ("DE", "FR")[seed % 2],
        "user_ctr": 0.1 + 0.01 * (seed % 50),
        "watch": {
            "ad": [f"key-{seed % 9}", "key-2", None][: seed % 4],
            "time": ["2026-02-20T00:00:00Z", "2026-03-01T11:00:00Z", 1772366000000][: seed % 4],
        },
    }


def saved_requests(scenario: str) -> list[dict]:
    return [
        {
            "scenario": scenario,
            "query": make_query(seed),
            "event_time": "2026-03-01T12:00:00Z",
            "candidates": {
                "ids": [f"{scenario}-{seed + 1}", f"{scenario}-{seed + 2}", "gone"],
                "affinity": [0.5, None, 1],
            },
        }
        for seed in range(3)
    ]


@pytest.fixture(scope="session")
def example_query() -> Callable[[int], dict]:
    """The features of one request; another seed, another request."""
    return make_query


@dataclass(frozen=True)
class World:
    """A built store. ``publish`` puts another release of a scenario on top."""

    root: Path
    store: DirectoryStore
    ads: dict[str, pa.Table]
    publish: Callable[[str, int], Release]


@pytest.fixture(scope="session")
def artifacts(sealing: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles and indexes, built once: for each scenario two towers of other seeds, and one heavy ranker for both."""
    root = tmp_path_factory.mktemp("artifacts")
    sealing.seal_heavy(root / "heavy", seed=1)
    for number, scenario in enumerate(SCENARIOS):
        ads = make_ads(scenario, np.random.default_rng(100 + number))
        (root / "ads" / scenario).mkdir(parents=True)
        pq.write_table(ads, root / "ads" / scenario / "part-0.parquet")
        for generation in (0, 1):
            tower = root / f"{scenario}-{generation}"
            requests = saved_requests(scenario)
            sealing.seal_two_tower(tower, scenario, seed=10 * number + generation, requests=requests)
            build_index(
                ads=str(root / "ads" / scenario),
                two_tower=tower,
                heavy=root / "heavy",
                out=root / f"{scenario}-{generation}-index",
                config=IndexConfig(engine="onnxruntime_cpu"),
            )
    return root


@pytest.fixture(scope="session")
def world(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A store with the first generation of both scenarios published, for tests that change nothing in it."""
    return make_world(artifacts, tmp_path_factory.mktemp("world") / "store")


@pytest.fixture
def own_world(artifacts: Path, tmp_path: Path) -> World:
    """The same for one test alone, to publish to and to damage."""
    return make_world(artifacts, tmp_path / "store")


def make_world(artifacts: Path, root: Path) -> World:
    store = DirectoryStore(root)

    def publish(scenario: str, generation: int) -> Release:
        return store.publish(
            two_tower=artifacts / f"{scenario}-{generation}",
            heavy=artifacts / "heavy",
            index=artifacts / f"{scenario}-{generation}-index",
        )

    for scenario in SCENARIOS:
        publish(scenario, 0)
    ads = {scenario: pq.read_table(artifacts / "ads" / scenario) for scenario in SCENARIOS}
    return World(root, store, ads, publish)


@pytest.fixture(scope="session")
def settings(world: World) -> Settings:
    return make_settings(world)


@pytest.fixture
def own_settings(own_world: World) -> Settings:
    return make_settings(own_world)


def make_settings(world: World) -> Settings:
    return Settings(
        store=world.root,
        engine_threads=1,
        query_engine="onnxruntime_cpu",
        heavy_engine="onnxruntime_cpu",
        heavy_batching="on",
        poll_interval_s=0.05,
        failed_retry_s=0.0,
    )


@pytest.fixture(scope="session")
def snapshot(world: World) -> Snapshot:
    """What serves ``world``."""
    return load_snapshot(world.store, engine_threads=1)


@pytest.fixture(scope="session")
def as_built() -> Callable[..., LiveIndex]:
    """Opens an index without any update."""
    return lambda index, two_tower, heavy: LiveIndex(index, two_tower.schema)
