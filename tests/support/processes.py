"""What tests of real processes share."""

import socket
import time
from collections.abc import Callable
from typing import Any

LONG_S = 60
"""What a test waits before it fails; nothing is measured."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(holds: Callable[[], Any], what: str) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: It never did.
    """
    end = time.monotonic() + LONG_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)
