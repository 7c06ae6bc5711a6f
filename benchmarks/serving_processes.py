"""Servers as processes: environments of their own, start, readiness, memory, processor time, end."""

import ctypes
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parent.parent
READY_S = 120
READY = "/health/ready"
"""Of adsieve; of its workers one may answer while another still loads."""
_PR_SET_PDEATHSIG = 1
DEBIAN_PYTHON = Path("/usr/bin/python3")
RAY = ("ray[serve]==2.60.0", "numpy==2.4.6", "onnxruntime==1.32.0", "msgspec==0.23.0", "xxhash==4.1.0")
TRITON = ("nvidia-pytriton==0.7.0", "numpy<2", "onnxruntime==1.32.0", "msgspec==0.23.0", "xxhash==4.1.0")


class CannotRunError(Exception):
    """A system cannot be installed or started on this machine; the benchmark says so and goes on without it.

    Args:
        may_succeed: Whether another attempt may.
    """

    def __init__(self, message: str, *, may_succeed: bool = False) -> None:
        super().__init__(message)
        self.may_succeed = may_succeed


@dataclass
class Server:
    """A running server of a system. ``title`` tells it from others of the same one; ``path`` takes the bodies.

    ``ready`` is a path that answers 200 once all of its processes answer, where it has one. ``beside`` are servers that
    it needs and that end with it.
    """

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    title: str = ""
    path: str = "/rank"
    ready: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    beside: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def all_headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **self.headers}

    def tree(self) -> list[psutil.Process]:
        """The process and all it started."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def memory(self) -> list["Memory"]:
        """Of each process, largest first."""
        found = []
        for process in self.tree():
            try:
                found.append(memory_of(process.pid))
            except (psutil.Error, OSError):
                continue
        return sorted(found, key=lambda one: one.uss_mib, reverse=True)

    def cpu_s(self) -> float:
        """Processor time so far of all its processes that live."""
        total = 0.0
        for process in self.tree():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total

    def tail(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-2000:]

    def wait(self, body: bytes) -> None:
        """Until it answers a body, and is ready.

        Raises:
            CannotRunError: It ended, or does not answer in time.
        """
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise CannotRunError(f"{self.name} ended:\n{self.tail()}", may_succeed=True)
            try:
                answer = httpx.post(self.url, content=body, headers=self.all_headers, timeout=30)
                if answer.status_code == 200 and self._is_ready():
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.25)
        raise CannotRunError(f"{self.name} does not answer:\n{self.tail()}")

    def _is_ready(self) -> bool:
        return not self.ready or httpx.get(f"http://127.0.0.1:{self.port}{self.ready}").status_code == 200

    def stop(self) -> None:
        """End it and all it started."""
        try:
            processes = self.tree()
        except psutil.NoSuchProcess:
            processes = []
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for other in self.beside:
            other.terminate()
            other.wait()


def start(
    name: str, command: Sequence[str], *, port: int, log: Path, env: Mapping[str, str] | None = None, ready: str = ""
) -> Server:
    """Start a server; it is not ready yet. It is told to end where whoever started it is killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    return Server(name=name, process=process, port=port, log=log, ready=ready)


@dataclass(frozen=True)
class Memory:
    """Of one process: what would be freed if it ended, and of it what is not a page of a file.

    Pages of a mapped file count as its own where no other process maps the file, as with a single worker.
    """

    uss_mib: float
    anonymous_mib: float


def memory_of(pid: int) -> Memory:
    """As the system tells it now."""
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous = int(status.split("RssAnon:")[1].split()[0]) / 1024
    return Memory(psutil.Process(pid).memory_full_info().uss / 2**20, anonymous)


def free_port(count: int = 1) -> int:
    """The first of ``count`` free ports side by side."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        if first + count < 65_536 and all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def environment(name: str, cache: Path, pip_arguments: Sequence[str]) -> Path:
    """The Python of an environment for ``ray`` or ``triton``, which is made and filled unless it is there.

    PyTriton brings a server that is linked against the distribution's own Python, so it needs that one.

    Raises:
        CannotRunError: It cannot be installed here; with what pip said.
    """
    python, wanted = {"ray": (Path(sys.executable), RAY), "triton": (DEBIAN_PYTHON, TRITON)}[name]
    target = cache / name
    mark, own = target / "installed.txt", target / "bin" / "python"
    if mark.exists() and mark.read_text() == "\n".join(wanted):
        return own
    if not python.exists():
        raise CannotRunError(f"{name}: needs {python}, the Python of a Debian or Ubuntu")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {', '.join(wanted)} into {target}", file=sys.stderr, flush=True)
    pip = [str(own), "-m", "pip", "install", "--quiet", *pip_arguments, *wanted]
    for command in ([str(python), "-m", "venv", str(target)], pip):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise CannotRunError(f"{name}: {' '.join(command)} failed:\n{(result.stdout + result.stderr)[-2000:]}")
    mark.write_text("\n".join(wanted))
    return own
