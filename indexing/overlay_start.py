"""Whether an overlay may begin or go on: with the log that it follows, and without one that is lost."""

import logging

from contracts.errors import ArtifactError
from contracts.release import IndexManifest, UpdatePosition
from indexing.lost_log import noted_log
from indexing.overlay_files import OverlayArrays
from indexing.update_log import UpdateLog

log = logging.getLogger(__name__)


class TakedownsUnknownError(ArtifactError):
    """The log of updates is lost, and this host does not know what it had stopped."""


def applied(overlay: OverlayArrays | None) -> bool:
    """Whether there is an overlay in which any update is in effect."""
    return overlay is not None and overlay.position is not None


def continues(overlay: OverlayArrays, end: UpdatePosition | None) -> bool:
    """Whether the log continues what was applied. Where it has vanished, what is known of takedowns is kept."""
    position = overlay.position
    return end is None or position is None or (position.log == end.log and position.seq <= end.seq)


def end_or_lost(followed: UpdateLog, index: IndexManifest, *, knows_stops: bool) -> UpdatePosition | None:
    """Where the log ends; None where there is none, and where it is lost but what it stopped is known.

    Args:
        followed: The log.
        index: Names a log where it was built with one; a note beside the log tells of it too.
        knows_stops: Whether this host knows what a lost log had stopped, or shall serve though nobody does.

    Raises:
        TakedownsUnknownError: The log is lost, and so is what it stopped.
    """
    fault = f"the log of updates in {followed.directory} is gone"
    try:
        end = followed.end
    except ArtifactError as error:
        end, fault = None, str(error)
    else:
        if end is not None or (index.updates is None and noted_log(followed.directory.parent) is None):
            return end
    if not knows_stops:
        raise TakedownsUnknownError(
            f"index {index.version} does not serve here: {fault}, and this host has not followed it before, so nobody "
            "knows which ads are taken down; repair the log, begin another with `adsieve index update --new-log`, or "
            "serve all the same with ADSIEVE_UNKNOWN_TAKEDOWNS=serve"
        )
    log.error("index %s: %s; what is known to be stopped stays stopped", index.version, fault)
    return None
