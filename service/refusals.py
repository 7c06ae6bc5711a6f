"""Releases that could not be loaded: told while that stands, and not tried again too soon."""

import logging
import time

from service.faults import Failure
from service.settings import Settings
from service.telemetry import Telemetry

log = logging.getLogger(__name__)


class Refusals:
    """By scenario, or whatever else a release is wanted for.

    Args:
        settings: ``failed_retry_s``.
        telemetry: Counts them.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self._settings, self._telemetry = settings, telemetry
        self._standing: dict[str, Failure] = {}

    @property
    def standing(self) -> dict[str, Failure]:
        return dict(self._standing)

    def note(self, key: str, release_id: str, error: Exception) -> None:
        """A release was refused; without an id, the store itself could not be read."""
        log.error("release %s of %s is refused: %s", release_id or "?", key or "the store", error)
        self._telemetry.release_failures.labels(key).inc()
        message = f"{type(error).__name__}: {error}"
        self._standing[key] = Failure(release_id=release_id, error=message, at=time.time())

    def forget(self, key: str) -> None:
        """Nothing is wrong with what is wanted there."""
        self._standing.pop(key, None)

    def is_paused(self, key: str, release_id: str) -> bool:
        """Whether this release failed a short while ago."""
        failure = self._standing.get(key)
        if failure is None or failure.release_id != release_id:
            return False
        return time.monotonic() - failure.tried < self._settings.failed_retry_s
