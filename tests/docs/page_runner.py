"""Code blocks of a page, and what runs them: bash, services in the background, Python in one namespace a page."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import free_port

FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVE = re.compile(r"(?:^|\s)adsieve serve\b")
PATIENCE_S = 600
"""A service opens its releases within seconds; a machine with other work needs longer."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


@dataclass(frozen=True)
class Step:
    """A command of a console block, and the lines that it is shown to print."""

    command: str
    shown: tuple[str, ...]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page in their order."""
    return [Block(language, body) for language, body in FENCE.findall(text)]


def steps(text: str) -> Iterator[Step]:
    """The commands of a console block: behind ``$``, to the end of a backslash, ``&&`` or here-document."""
    lines = text.splitlines()
    while lines:
        first = lines.pop(0)
        if not first.startswith("$ "):
            raise ValueError(f"a console block begins with a command, got {first!r}")
        command = [first.removeprefix("$ ")]
        while command[-1].endswith(("\\", "&&")):
            command.append(lines.pop(0))
        if end := re.search(r"<<'(\w+)'", command[-1]):
            while command[-1] != end[1]:
                command.append(lines.pop(0))
        shown = []
        while lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        yield Step("\n".join(command), tuple(shown))


@dataclass
class Runner:
    """Runs what a page says in a directory of its own.

    Args:
        directory: Where it runs.
        environment: Beside the path and the home of this process.
        replaced: What stands in the page, and what runs in its place.
    """

    directory: Path
    environment: Mapping[str, str]
    replaced: Mapping[str, str] = field(default_factory=dict)
    printed: str = ""
    exports: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    services: dict[int, subprocess.Popen] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=lambda: {8000: free_port(), 8001: free_port()})

    def real(self, text: str) -> str:
        """The text as it runs: names of this machine in the place of the page's."""
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return re.sub(r"(?<=[ :])(800[01])\b", lambda found: str(self.ports[int(found[1])]), text)

    def python(self, code: str) -> None:
        """Run Python with the names that earlier blocks of the page made."""
        exec(compile(self.real(code), f"{self.directory}/page.py", "exec"), self.names)

    def shell(self, step: Step) -> None:
        """Run a command; one that is shown to print an error must print that error."""
        command = self.real(step.command)
        if SERVE.search(command):
            self.serve(command)
            return
        if command.startswith("export "):
            self.exports.append(command)
        done = subprocess.run(
            ["bash", "-c", self._script(command)], cwd=self.directory, env=dict(self.environment), capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        told = done.stdout + done.stderr
        self.printed += f"{told}\n"
        refused = bool(step.shown) and step.shown[0].startswith("error:")
        if (done.returncode != 0) != refused:
            raise AssertionError(f"$ {command}\nexit code {done.returncode}\n{told}")
        if refused:
            lacking = [line for line in step.shown if line not in told]
            if lacking:
                raise AssertionError(f"$ {command}\nlacks {lacking}\n{told}")

    def serve(self, command: str) -> None:
        """Start a service in the background, in the place of one that has its port, and wait until it is ready."""
        given = re.search(r"--port (\d+)", command)
        port = int(given[1]) if given else self.ports[8000]
        self._stop(port)
        if not given:
            command = SERVE.sub(f" adsieve serve --port {port}", command)
        log = self.directory / f"service-{port}.log"
        with log.open("ab") as output:
            script = ["bash", "-c", self._script(command)]
            self.services[port] = subprocess.Popen(
                script,
                cwd=self.directory,
                env=dict(self.environment),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not _is_ready(port):
            if self.services[port].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"$ {command}\ndoes not become ready\n{log.read_text()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End all services."""
        for port in list(self.services):
            self._stop(port)

    def _stop(self, port: int) -> None:
        service = self.services.pop(port, None)
        if service is not None and service.poll() is None:
            os.killpg(service.pid, signal.SIGTERM)
            service.wait(60)

    def _script(self, command: str) -> str:
        curl = 'curl() { command curl --fail-with-body --silent --show-error "$@"; }'
        return "\n".join(["set -euo pipefail", curl, *self.exports, command])


def environment_of(home: Path) -> dict[str, str]:
    """Our command first in the path, a cache of its own, no setting of ours, one thread a process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ADSIEVE_")}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, **threads, "PATH": path, "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1"}


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
