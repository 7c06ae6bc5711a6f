"""The releases of a scenario with what a person wants to know of them before a rollback or a prune."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from contracts.artifact import read_manifest
from contracts.errors import ArtifactError
from contracts.release import IndexManifest, Release
from indexing.store import DirectoryStore
from indexing.store_files import Pointer
from indexing.store_recovery import is_whole, readable_releases

State = Literal["current", "earlier", "aside", "pruned"]


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One release.

    Args:
        release: Its record.
        state: ``current`` serves; ``earlier`` is what a rollback steps back to; ``aside`` is whole but not in that
            history; ``pruned`` has lost parts.
        pinned: Whether ``prune`` leaves it.
        age_s: Since it was published.
        watermark: Latest moment of its index's data, ISO 8601; None where its manifest cannot be read.
        watermark_age_s: Since then.
    """

    release: Release
    state: State
    pinned: bool
    age_s: float
    watermark: str | None
    watermark_age_s: float | None


def listed(store: DirectoryStore, scenario: str, now: datetime) -> list[Listed]:
    """Releases of a scenario: what serves, then what a rollback steps back to in its order, then the others.

    Raises:
        ArtifactError: The pointer, or the record of a release that it names, cannot be read.
    """
    pointer = store.pointer(scenario)
    if pointer is None:
        return []
    records = readable_releases(store.root, scenario)
    names = [*pointer.names, *(name for name in reversed(records) if name not in pointer.names)]
    return [_one(store, records.get(name) or store.release(scenario, name), pointer, now) for name in names]


def recorded(store: DirectoryStore, scenario: str, now: datetime) -> list[Listed]:
    """The same without the pointer, for the day when it cannot be read: nothing is known to serve or to be pinned."""
    releases = reversed(readable_releases(store.root, scenario).values())
    return [_one(store, release, None, now) for release in releases]


def _one(store: DirectoryStore, release: Release, pointer: Pointer | None, now: datetime) -> Listed:
    watermark = _watermark(store, release)
    return Listed(
        release=release,
        state=_state(store, release, pointer),
        pinned=pointer is not None and release.release_id in pointer.pinned,
        age_s=_seconds(now, release.created_at),
        watermark=watermark,
        watermark_age_s=None if watermark is None else _seconds(now, watermark),
    )


def _state(store: DirectoryStore, release: Release, pointer: Pointer | None) -> State:
    if pointer is not None and release.release_id == pointer.release:
        return "current"
    if pointer is not None and release.release_id in pointer.history:
        return "earlier"
    return "aside" if is_whole(store.root, release) else "pruned"


def _watermark(store: DirectoryStore, release: Release) -> str | None:
    try:
        return read_manifest(store.paths(release).index, IndexManifest).watermark
    except ArtifactError:
        return None


def _seconds(now: datetime, moment: str) -> float:
    return (now - datetime.fromisoformat(moment)).total_seconds()
