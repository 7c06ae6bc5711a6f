"""Services as processes, and what they serve."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loading import load


@pytest.fixture(scope="session")
def processes() -> ModuleType:
    """What starts, asks and kills services."""
    return load("service/faults/processes.py")


@pytest.fixture
def serve(tmp_path: Path, processes: ModuleType) -> Iterator[Callable[..., Any]]:
    """Starts services, which end with the test."""
    made: list[Any] = []

    def make(store: object, *arguments: str, **options: Any) -> Any:
        directory = tmp_path / f"service-{len(made)}"
        directory.mkdir()
        made.append(processes.Service(store, directory, *arguments, **options))
        return made[-1].start()

    yield make
    for service in made:
        if service.process is not None:
            service.go_on()
        service.kill()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Any]:
    """A Redis of its own; see ``tests/indexing/stores``."""
    server = load("indexing/stores/conftest.py").RedisServer(tmp_path / "redis")
    yield server.start()
    server.stop()


@pytest.fixture
def body(example_query: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """A request of the full stage."""
    ids = [f"shopping-{number}" for number in range(1, 7)]
    return {"scenario": "shopping", "query": example_query(1), "candidates": ids}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a tmpfs of a few MiB, or skips."""
    mounted: list[Path] = []

    def mount(mib: int) -> Path:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no mount")
        if done.returncode:
            pytest.skip(f"mounting a tmpfs needs root: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)
