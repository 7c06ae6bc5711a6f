"""A headless Chromium of the system, driven by its DevTools protocol over a websocket."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_START_SECONDS, _ANSWER_SECONDS = 120, 120
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """Path of an installed Chromium; None without one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def open_chromium(program: str, directory: Path) -> Iterator["Page"]:
    """A browser with one empty page; ``directory`` holds its profile."""
    command = [program, *_OPTIONS, f"--user-data-dir={directory}", "about:blank"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, start_new_session=True, **quiet) as process:
        try:
            with connect(_address(directory, process), max_size=None, open_timeout=_START_SECONDS) as connection:
                yield Page(connection)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # it has helpers of its own in the same session


def _address(directory: Path, process: subprocess.Popen[bytes]) -> str:
    """The browser writes its port and path into its profile once it listens."""
    written = directory / "DevToolsActivePort"
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        lines = written.read_text().split("\n") if written.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise RuntimeError(f"Chromium does not listen, exit code {process.poll()}")


class Page:
    """One page of the browser. Every request, console message and exception since the last ``open`` is kept."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._session: str | None = None
        self._number = 0
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def look(
        self, *, width: int, height: int = 800, dark: bool = False, script: bool = True, offline: bool = True
    ) -> None:
        """Set what the next page is shown on. There is no network unless ``offline`` is false."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.call("Network.emulateNetworkConditions", offline=offline, **limits)

    def open(self, address: Path | str) -> None:
        """Load a file or a URL and wait until it is there."""
        self._events.clear()
        self.call("Page.navigate", url=address.as_uri() if isinstance(address, Path) else address)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key, as a person at a keyboard does."""
        code = {"Enter": 13, " ": 32, "Tab": 9}[key]
        name = "Space" if key == " " else key
        shared = {"key": key, "code": name, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button of the mouse."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write what the page looks like as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Exceptions, and what the page or the browser wrote to the console as a warning or an error."""
        found = []
        for event in self._events:
            parameters = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(str(parameters["exceptionDetails"]))
                case "Log.entryAdded" if parameters["entry"]["level"] in ("warning", "error"):
                    found.append(parameters["entry"]["text"])
                case "Runtime.consoleAPICalled" if parameters["type"] in ("warning", "error", "assert"):
                    found.append(str(parameters["args"]))
        return found

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._connection.recv(timeout=_ANSWER_SECONDS))
        if "method" in message:
            self._events.append(message)
        return message
