"""Warm-up: a release answers its saved requests before it serves, so that no caller meets a cold page."""

import logging
import time

from contracts.errors import AdsieveError, ArtifactError
from service.api import Degraded
from service.deadline import Deadline
from service.heavy_runner import HeavyRunner
from service.ranker import rank
from service.releases import REQUESTS_FILE, LoadedRelease, Snapshot
from service.settings import Settings
from service.wire import decode_request

log = logging.getLogger(__name__)

PAUSE_S = 0.2

# A saved request comes from a log, where the strict policies of this service did not hold.
LENIENT = {
    "unknown_features": "warn",
    "missing_features": "default",
    "duplicate_ads": "drop",
    "invalid_bids": "drop",
    "old_index": "warn",
}


def warm_up(loaded: LoadedRelease, settings: Settings, runner: HeavyRunner | None = None) -> int:
    """Replay the saved requests of a release's two-tower bundle against it; returns how many there were.

    Args:
        runner: Runs the heavy stage on another host, whose failure is no fault of the release; None runs it here.

    Raises:
        ArtifactError: A saved request fails, or its heavy ranker does here: the release must not serve.
    """
    for number, line in enumerate(loaded.warm_up_requests, 1):
        source = f"release {loaded.release.release_id}: {REQUESTS_FILE} line {number}"
        try:
            degraded = _replayed(loaded, line, settings, runner)
        except AdsieveError as error:
            raise ArtifactError(f"{source}: {error}") from error
        if degraded is not None and degraded.reason == "failed" and runner is None:
            raise ArtifactError(f"{source}: the heavy ranker failed: {degraded.detail}")
    return len(loaded.warm_up_requests)


def wait_for_heavy(loaded: LoadedRelease, settings: Settings, runner: HeavyRunner, *, patience_s: float) -> None:
    """Wait until another host runs the heavy ranker of a release, or patience is over: then it serves in light order.

    The other host follows the same store and may be a little behind.
    """
    end = time.monotonic() + patience_s
    while degraded := _replayed(loaded, loaded.warm_up_requests[0], settings, runner):
        if time.monotonic() > end:
            log.warning("release %s: %s", loaded.release.release_id, degraded.detail)
            return
        time.sleep(PAUSE_S)


def _replayed(loaded: LoadedRelease, line: bytes, settings: Settings, runner: HeavyRunner | None) -> Degraded | None:
    snapshot = Snapshot({loaded.scenario: loaded})
    lenient = settings.model_copy(update=LENIENT)
    return rank(decode_request(line), snapshot, lenient, Deadline(), runner=runner).response.degraded
