"""``adsieve serve`` as real processes, asked from outside while something about them fails."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from processes import eventually, free_port

SETTINGS = {
    "ADSIEVE_ENGINE_THREADS": "1",
    "ADSIEVE_HEAVY_ENGINE": "onnxruntime_cpu",
    "ADSIEVE_QUERY_ENGINE": "onnxruntime_cpu",
    "ADSIEVE_POLL_INTERVAL_S": "0.2",
    "ADSIEVE_UPDATE_INTERVAL_S": "0.2",
    "ADSIEVE_FAILED_RETRY_S": "0.5",
    "ADSIEVE_HEAVY_TIMEOUT_MS": "300",
    "ADSIEVE_HEAVY_FAILURES": "3",
    "ADSIEVE_HEAVY_PAUSE_S": "0.5",
    "OMP_NUM_THREADS": "1",
}


class Service:
    """A running ``adsieve serve``; each request goes over a connection of its own, so to any worker.

    Args:
        store: Directory or URL.
        directory: For its log, its counts and what it keeps of the store.
        arguments: More of the command.
        variables: Of its environment.
    """

    def __init__(
        self, store: object, directory: Path, *arguments: str, port: int | None = None, **variables: str
    ) -> None:
        self.store, self.directory, self.port = str(store), directory, port or free_port()
        self.log, self.temporary = directory / "serve.log", directory / "tmp"
        self._arguments, self._variables = arguments, variables
        self.process: subprocess.Popen | None = None

    def start(self) -> "Service":
        """Start it; not yet ready when this returns."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "adsieve", "serve", "--store", self.store, "--port", str(self.port)]
        command += ["--local", str(self.directory / "local"), *self._arguments]
        variables = SETTINGS | {"TMPDIR": str(self.temporary)} | self._variables
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
        return self

    def kill(self) -> None:
        """As the kernel does it (SIGKILL), stopped or not."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stall(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in (self.process.pid, *self.workers()):
            os.kill(pid, number)

    def workers(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [pid for pid in map(int, text.split()) if "spawn_main" in command_line(pid)]

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=30, **options)

    def ready(self) -> dict[str, Any]:
        """The answer of /health/ready; empty while nobody listens."""
        try:
            return dict(self.request("GET", "/health/ready").json())
        except httpx.TransportError:
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()) from None
            return {}

    def wait_ready(self, workers: int = 1) -> "Service":
        eventually(lambda: self.ready().get("ready"), f"{self.log}: not ready")
        eventually(lambda: self.metrics()["adsieve_ready_processes"] == workers, f"{self.log}: a worker is not ready")
        return self

    def faults(self) -> dict[str, str]:
        """What stands against following the store, by what was being done."""
        return {fault["what"]: fault["error"] for fault in self.ready()["faults"]}

    def metrics(self) -> dict[str, float]:
        lines = self.request("GET", "/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def rank(self, body: dict[str, Any]) -> dict[str, Any]:
        """Rank, which must succeed."""
        answer = self.request("POST", "/rank", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def descriptors(pid: int) -> int:
    """How many a process has but for sockets, whose number requests change."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:  # closed meanwhile
            continue
    return sum(not link.startswith("socket:") for link in links)


@contextmanager
def answering(port: int, pieces: Callable[[], Iterator[bytes]]) -> Iterator[None]:
    """A server in the place of another one: whatever it is asked, it sends these pieces."""
    listener = socket.create_server(("127.0.0.1", port))
    listener.settimeout(0.1)
    stop = threading.Event()

    def answer(connection: socket.socket) -> None:
        try:
            with connection:
                connection.recv(1 << 20)
                for piece in pieces():
                    if stop.is_set():
                        return
                    connection.sendall(piece)
        except OSError:
            return  # the caller had enough

    def run() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(10)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        listener.close()


class Asking:
    """Asks again and again in threads, and keeps every status, 0 for a connection that ended."""

    def __init__(self, service: Service, body: dict[str, Any], threads: int = 2) -> None:
        self.statuses: list[int] = []
        self._service, self._body, self._stop = service, body, threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(threads)]

    def __enter__(self) -> "Asking":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                self.statuses.append(self._service.request("POST", "/rank", json=self._body).status_code)
            except httpx.TransportError:
                self.statuses.append(0)

    def wait_for(self, count: int) -> Sequence[int]:
        """Until so many more were answered; their statuses."""
        before = len(self.statuses)
        eventually(lambda: len(self.statuses) >= before + count, "nobody answers")
        return self.statuses[before:]
