"""Asks the service of a tried image as Docker and its callers would: health, readiness, one ranking, a graceful end."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_PATIENCE_S = 120
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x49, b""))  # SIOCSIFFLAGS: up, loopback, running
os.execvp(sys.argv[1], sys.argv[1:])
"""
_ASK = """
import sys, urllib.error, urllib.request
url, body = sys.argv[1], sys.argv[2].encode() or None
try:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


class Image(Protocol):
    """What is known of an image that was started."""

    root: Path
    env: dict[str, str]
    user: str
    workdir: str
    health: list[str]


def as_its_user(image: Image, *command: str) -> list[str]:
    """The command that runs another one in an image: its user and variables, no capabilities, none to be gained."""
    uid, gid = image.user.split(":")
    rights = ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")
    variables = (f"{name}={value}" for name, value in image.env.items())
    user = ("setpriv", f"--reuid={uid}", f"--regid={gid}", *rights)
    return ["chroot", str(image.root), *user, "env", "-i", "-C", image.workdir, *variables, *command]


def check_service(process: subprocess.Popen[bytes], image: Image, stop_signal: int) -> int:
    """Ask, then stop; 0 where all is as it should be.

    Raises:
        ValueError: An answer is another than expected.
        TimeoutError: The service does not come up.
    """
    try:
        inside = _Inside(process, image)
        _until("the image's HEALTHCHECK", lambda: inside.run(*image.health).returncode == 0, process)
        has_store = (image.root / image.env["ADSIEVE_STORE"].strip("/")).is_dir()
        if has_store:
            _until("/health/ready", lambda: inside.ask("/health/ready")[0] == 200, process)
            for request in _saved_requests(image):
                status, answer = inside.ask("/rank", request)
                _expect("/rank", (status, bool(json.loads(answer).get("ads", {}).get("ids"))), (200, True))
        else:
            _expect("/health/ready of an empty store", inside.ask("/health/ready")[0], 503)
        _expect("/console, whose page is a file of the package", inside.ask("/console")[0], 200)
        inside.stop(stop_signal)
        begin = time.monotonic()
        _expect("the exit code", process.wait(60), 0)
        what, name = "ranked" if has_store else "waited for a release", signal.Signals(stop_signal).name
        print(f"the service was healthy, {what}, and ended on {name} in {time.monotonic() - begin:.1f} s:")
        print(f"user {image.user}, read-only root, no capabilities, no network")
        return 0
    finally:
        process.kill()


class _Inside:
    """Runs commands in the namespaces of the service."""

    def __init__(self, process: subprocess.Popen[bytes], image: Image) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        _until("the first process", lambda: bool(children.read_text().split()), process)
        self._pid, self._image = int(children.read_text().split()[0]), image

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        enter = ["nsenter", "--net", "--pid", "-t", str(self._pid)]
        whole = [*enter, *as_its_user(self._image, *command)]
        return subprocess.run(whole, capture_output=True, text=True, check=False)

    def ask(self, path: str, body: str = "") -> tuple[int, str]:
        done = self.run("python", "-c", _ASK, f"http://127.0.0.1:8000{path}", body)
        status, _, text = done.stdout.partition(" ")
        return int(status or 0), text

    def stop(self, number: int) -> None:
        subprocess.run(["kill", f"-{number}", str(self._pid)], check=True)


def _saved_requests(image: Image) -> list[str]:
    """The first saved request of each two-tower bundle of the store."""
    store = image.root / image.env["ADSIEVE_STORE"].strip("/")
    return [path.read_text().splitlines()[0] for path in sorted(store.glob("bundles/*/requests.jsonl"))]


def _until(what: str, holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not holds():
        if process.poll() is not None or time.monotonic() > end:
            raise TimeoutError(f"{what}: the service ended or did not get there within {_PATIENCE_S} s")
        time.sleep(0.2)


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise ValueError(f"{what}: expected {expected}, got {found}")
