"""Warm-up: a release answers its saved requests before it serves, so that no caller meets a cold page."""

from contracts.errors import AdsieveError, ArtifactError
from service.deadline import Deadline
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
}


def warm_up(loaded: LoadedRelease, settings: Settings) -> int:
    """Replay the saved requests of a release's two-tower bundle against it; returns how many there were.

    Raises:
        ArtifactError: A saved request fails, or its heavy ranker does: the release must not serve.
    """
    snapshot = Snapshot({loaded.scenario: loaded})
    lenient = settings.model_copy(update=LENIENT)
    for number, line in enumerate(loaded.warm_up_requests, 1):
        source = f"release {loaded.release.release_id}: {REQUESTS_FILE} line {number}"
        try:
            response = rank(decode_request(line), snapshot, lenient, Deadline()).response
        except AdsieveError as error:
            raise ArtifactError(f"{source}: {error}") from error
        if response.degraded is not None and response.degraded.reason == "failed":
            raise ArtifactError(f"{source}: the heavy ranker failed: {response.degraded.detail}")
    return len(loaded.warm_up_requests)
