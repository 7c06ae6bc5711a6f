"""How long a request may still take. Checked before and after each stage."""

import time
from math import inf

import msgspec


class Deadline(msgspec.Struct, frozen=True):
    """A moment on the monotonic clock, infinite where there is none."""

    at: float = inf

    @classmethod
    def after_ms(cls, timeout_ms: float | None, *, start: float | None = None) -> "Deadline":
        """``timeout_ms`` after ``start`` (``time.monotonic()``, now unless given); None is no deadline."""
        if timeout_ms is None:
            return cls()
        return cls((time.monotonic() if start is None else start) + timeout_ms / 1000)

    def remaining_s(self) -> float:
        """Seconds left, negative once it has passed."""
        return self.at - time.monotonic()

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self.at


class DeadlineError(Exception):
    """The deadline passed before there was anything to answer with (HTTP 503)."""
