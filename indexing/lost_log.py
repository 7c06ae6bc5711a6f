"""What tells that a store had a log of updates once, when there is none: a note, its hosts, its indexes.

    updates-log.json    id of the log, written before its first update is acknowledged; of a mirror, when it is followed

A log that is gone must not be begun anew unasked: ads that it had taken down would be shown again.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from contracts.artifact import read_manifest, write_json
from contracts.errors import ArtifactError
from contracts.release import IndexManifest
from indexing.overlay_stops import HOSTS, STOPS, Stops

NOTE = "updates-log.json"
INDEXES = "indexes"


class LogNote(msgspec.Struct, frozen=True):
    """Which log a store has, or had."""

    log: str


def note_log(store: Path, log_id: str | None) -> None:
    """Note which log a store has; nothing is written where that is known, or where it has none."""
    if log_id is not None and noted_log(store) != log_id:
        write_json(store / NOTE, LogNote(log_id))


def noted_log(store: Path) -> str | None:
    """Id of the log that a store has or had; None before the first update, empty where the note cannot be read."""
    try:
        return msgspec.json.decode((store / NOTE).read_bytes(), type=LogNote).log
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return ""


def trace_of_log(store: Path) -> str | None:
    """What tells, in words, that there was a log of updates in a store; None where nothing does."""
    return next(_traces(store), None)


def _traces(store: Path) -> Iterator[str]:
    for path in sorted((store / INDEXES).glob("*/")):
        try:
            merged = read_manifest(path, IndexManifest).updates
        except ArtifactError:  # it can be neither served nor rolled back to
            continue
        if merged is not None:
            yield f"the log of updates {merged.log}, which index {path.name} holds up to number {merged.seq}, is gone"
    noted = noted_log(store)
    if noted is not None:
        yield f"the log of updates {noted or '(unknown)'}, which {store / NOTE} tells of, is gone"
    for path in sorted(store.glob(f"{HOSTS}/*/{STOPS}")):
        if Stops(path).are_known:
            yield f"the log of updates, of which {path} holds what it had stopped, is gone"
