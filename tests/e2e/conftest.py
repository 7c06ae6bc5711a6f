"""Several service processes on one store, and the parts that they serve."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexing.config import IndexConfig
from indexing.nightly import build_index
from loading import load


@pytest.fixture(scope="session")
def hosts() -> ModuleType:
    """What starts, asks, watches and kills hosts."""
    return load("e2e/hosts.py")


@pytest.fixture
def watch(hosts: ModuleType) -> Iterator[Any]:
    """At the end of a test everything was right."""
    found = hosts.Watch()
    yield found
    found.stop()
    assert not found.wrong
    assert found.num_answers > 0


@pytest.fixture
def make_host(tmp_path: Path, watch: Any, hosts: ModuleType) -> Iterator[Callable[..., Any]]:
    """Starts hosts, which end with the test."""
    made: list[Any] = []

    def make(store: object, local: Path | None = None) -> Any:
        made.append(hosts.Host(str(store), local, tmp_path / f"host-{len(made)}.log", watch))
        return made[-1].start()

    yield make
    for host in made:
        host.kill()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Any]:
    """A Redis of its own; see ``tests/indexing/stores``."""
    server = load("indexing/stores/conftest.py").RedisServer(tmp_path / "redis")
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory, hosts: ModuleType) -> Path:
    """Bundles ``two_tower``, ``other_two_tower`` and ``heavy``, a catalogue ``ads``, ``index`` and ``other_index``."""
    root, sealing = tmp_path_factory.mktemp("parts"), load("service/sealing.py")
    saved = {"query": hosts.QUERY, "event_time": "2026-02-01T00:00:00Z", "candidates": {"ids": hosts.ADS[:3]}}
    requests = [{"scenario": "shopping", **saved}]
    for seed, name in enumerate(("two_tower", "other_two_tower")):
        sealing.seal_two_tower(root / name, "shopping", seed=seed, requests=requests)
    sealing.seal_heavy(root / "heavy", seed=2)
    (root / "ads").mkdir()
    start, count = datetime(2026, 1, 1, tzinfo=UTC), len(hosts.ADS)
    columns = {
        "ad_id": hosts.ADS,
        "valid_from": pa.array([start] * count, pa.timestamp("us", "UTC")),
        "scenario": ["shopping"] * count,
        "status": ["active"] * count,
        "advertiser_id": [f"advertiser-{number % 3}" for number in range(count)],
        "bid": [1.0 + number / 10 for number in range(count)],
        "objective": ["click"] * count,
        "ad_key": [f"key-{number}" for number in range(count)],
        "tags": pa.array([["t1"]] * count, pa.list_(pa.string())),
        "price": [float(number) for number in range(count)],
    }
    pq.write_table(pa.table(columns), root / "ads" / "part-0.parquet")
    for prefix in ("", "other_"):
        build_index(
            ads=str(root / "ads"),
            two_tower=root / f"{prefix}two_tower",
            heavy=root / "heavy",
            out=root / f"{prefix}index",
            config=IndexConfig(engine="onnxruntime_cpu"),
        )
    return root
