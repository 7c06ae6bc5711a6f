"""The console in a browser, as tests look at it, and the server process that serves it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx

PHONE, DESK = 360, 1280
TOKEN = "secret"
PANELS = ("releases", "live", "playground", "compare")

_DRAWN = {
    "releases": "document.querySelector('#panel-releases article table')",
    "live": "/\\d/.test(document.querySelector('#panel-live .tile b')?.textContent ?? '')",
    "playground": "document.querySelector('#ads tbody tr')",
    "compare": "document.querySelector('#panel-compare .data-table tbody tr')",
}
_PRESS = {"playground": "playground-rank", "compare": "compare-go"}
_ROWS = """[...document.querySelectorAll(%r + ' tbody tr')].map(row => [...row.cells].map(cell => {
  const copy = cell.cloneNode(true);
  copy.querySelectorAll('small, [aria-hidden]').forEach(note => note.remove());
  return copy.textContent.trim();
}))"""


@contextmanager
def service_process(store: Path, **settings: str) -> Iterator[str]:
    """``adsieve serve`` with two workers over a store; its URL, once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {f"ADSIEVE_{name.upper()}": value for name, value in settings.items()}
    command = ["-m", "adsieve", "serve", "--store", str(store), "--port", str(port), "--workers", "2"]
    process = subprocess.Popen([sys.executable, *command, "--log-level", "warning"], env=os.environ | names)
    url = f"http://127.0.0.1:{port}"
    try:
        wait(lambda: is_ready(url) or process.poll() is not None, seconds=300)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def is_ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health/ready").status_code == 200
    return False


def wait(condition: Any, *, seconds: float = 30.0) -> Any:
    """What a condition gives, once it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.05)
    return found


class ConsoleBrowser:
    """Opens the console of a service on a ``page`` of a browser."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url, self.run = page, url, page.run
        self._axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")

    def open(
        self, *, width: int = DESK, dark: bool = False, token: str | None = TOKEN, signed_out: bool = True
    ) -> None:
        """Show the page anew; with a token, signed in. ``signed_out``: the page asks for one."""
        self.page.look(width=width, dark=dark, offline=False, script=False)
        self.page.open(f"{self.url}/console")  # where the earlier token is, without using it
        self.page.look(width=width, dark=dark, offline=False)
        self.run("sessionStorage.clear()")
        self.page.open(f"{self.url}/console")
        if signed_out:
            self.wait("!document.getElementById('sign-in').hidden")
        if token is not None:
            self.sign_in(token)
            self.wait("document.querySelector('#panels a[aria-current]')")

    def sign_in(self, token: str) -> None:
        """Type a token and press Enter."""
        self.run("document.getElementById('token').focus()")
        self.page.call("Input.insertText", text=token)
        self.page.press("Enter", "\r")

    def panel(self, name: str) -> None:
        """Go to a panel, let it rank where it does, and wait for what it draws."""
        self.run(f"document.querySelector('#panels a[href=\"#{name}\"]').click()")
        if name in _PRESS:
            self.wait(f"document.querySelector('#{name}-text')?.value")
            self.press(_PRESS[name])
        self.wait(_DRAWN[name])

    def press(self, button: str) -> None:
        """Click a button by its id, once it can be."""
        self.wait(f"!document.getElementById({button!r}).disabled")
        self.run(f"document.getElementById({button!r}).click()")

    def paste(self, panel: str, text: str) -> None:
        """Put another request into a panel."""
        self.wait(f"document.querySelector('#{panel}-text')?.value")
        self.run(
            f"(() => {{ const field = document.getElementById('{panel}-text'); field.value = {text!r};"
            "field.dispatchEvent(new Event('input')); })()"
        )

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        wait(lambda: self.run(f"Boolean({expression})"))

    def rows(self, table: str) -> list[list[str]]:
        """What the cells of a table show, without the notes under them."""
        return self.run(_ROWS % table)

    def overflow(self) -> int:
        """How many pixels the page is wider than the screen."""
        return self.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def focused(self) -> str:
        """The text of what has the focus."""
        return self.run("document.activeElement.textContent.trim()")

    def violations(self) -> list[str]:
        """What axe-core has against the page: rules of WCAG 2.2 A and AA, and its best practices."""
        self.run(f"void (() => {{ if (!window.axe) {{ {self._axe} }} }})()")
        found = self.run("axe.run(document).then(found => found.violations)")
        return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
