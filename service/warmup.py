"""Warm-up: a release answers its saved requests before it serves, so that no caller meets a cold page."""

from contracts.errors import AdsieveError, ArtifactError
from service.api import Degraded
from service.batch_trials import warm_batches
from service.deadline import Deadline
from service.heavy_runner import HeavyRunner
from service.ranker import rank
from service.releases import REQUESTS_FILE, LoadedRelease, Snapshot
from service.settings import Settings
from service.wire import decode_request

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

    Then the batches that requests may share are run once, where they are to share any.

    Args:
        runner: Runs the heavy stage on another host, whose failure is no fault of the release; None runs it here.

    Raises:
        ArtifactError: A saved request fails, or its heavy ranker does here: the release must not serve.
    """
    for number, line in enumerate(loaded.warm_up_requests, 1):
        source = f"release {loaded.release.release_id}: {REQUESTS_FILE} line {number}"
        try:
            degraded = replayed(loaded, line, settings, runner)
        except AdsieveError as error:
            raise ArtifactError(f"{source}: {error}") from error
        if degraded is not None and degraded.reason == "failed" and runner is None:
            raise ArtifactError(f"{source}: the heavy ranker failed: {degraded.detail}")
    warm_batches(loaded, settings)
    return len(loaded.warm_up_requests)


def replayed(loaded: LoadedRelease, line: bytes, settings: Settings, runner: HeavyRunner | None) -> Degraded | None:
    """Rank one saved request, under no strict policy; why its order is the light one, or None."""
    snapshot = Snapshot({loaded.scenario: loaded})
    lenient = settings.model_copy(update=LENIENT)
    return rank(decode_request(line), snapshot, lenient, Deadline(), runner=runner).response.degraded
