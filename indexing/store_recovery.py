"""Restores the pointer of a scenario that is gone or cannot be read, or that names a release whose record is gone.

A scenario was never published only where neither a copy of its pointer nor a record of a release names it. While its
first release is being recorded its copy is one that names no release, so that a publisher that was killed there left
no lost pointer.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from contracts.artifact import is_ready, write_json
from contracts.errors import ArtifactError, InputError
from contracts.names import is_name
from contracts.release import Release
from indexing.store_files import COPIES, CURRENT, RELEASES, Pointer, read_record, record_path, release_paths

log = logging.getLogger(__name__)

_NONE = ""
_MOVE_IT = "move it away"


def scenarios(root: Path) -> list[str]:
    """Names of the scenarios that have a release, or had one before their pointer was lost; sorted.

    A file whose name no scenario can have is none.
    """
    pointed = _names(root / CURRENT, ".json")
    named = (_names(root / COPIES, ".json") | _names(root / RELEASES, "")) - pointed
    return sorted(pointed | {name for name in named if is_lost(root, name)})


def is_lost(root: Path, scenario: str) -> bool:
    """Whether a scenario has no pointer and had one."""
    path, copy = root / CURRENT / f"{scenario}.json", root / COPIES / f"{scenario}.json"
    if path.exists():
        return False
    named = any((root / RELEASES / scenario).glob("[!.]*.json"))  # before the copy, which is written before the first
    try:
        named = read_record(copy, Pointer).release != _NONE if copy.exists() else named
    except ArtifactError:
        named = True
    return named and not path.exists()  # not published meanwhile


def read_pointer(root: Path, scenario: str) -> Pointer | None:
    """The pointer as readers see it; None before the first release.

    Raises:
        ArtifactError: It is gone or cannot be read; the message names the file and what restores it.
    """
    path = root / CURRENT / f"{scenario}.json"
    try:
        return _read(root, scenario)
    except ArtifactError as error:
        first = f"{_MOVE_IT}, and then " if path.is_dir() else ""
        raise ArtifactError(
            f"{error}; {first}the next `adsieve index publish`, or `adsieve index rollback --scenario {scenario} --to "
            "RELEASE`, restores it"
        ) from error


def usable_pointer(root: Path, scenario: str) -> Pointer | None:
    """The pointer for whoever moves it: where it is gone or damaged, the best that can be restored, loudly.

    Restored from its copy, else from the releases' records: the one published last and those before it. What was pinned
    is lost then, and whether somebody had rolled back.

    Raises:
        ArtifactError: A directory is where it belongs.
    """
    _require_no_directory(root, scenario)
    try:
        pointer = _read(root, scenario)
    except ArtifactError as error:
        pointer = _restored(root, scenario, error)
    return None if pointer is None else _without_lost(root, scenario, pointer)


def note_first(root: Path, scenario: str) -> None:
    """Before the first record of a scenario: its pointer is still to be written, and not lost."""
    path, copy = root / CURRENT / f"{scenario}.json", root / COPIES / f"{scenario}.json"
    if not path.exists() and not copy.exists() and not is_lost(root, scenario):
        write_json(copy, Pointer(release=_NONE))


def write_pointer(root: Path, scenario: str, pointer: Pointer) -> None:
    """Replace the pointer, and its copy before it; of the first one after it: a copy alone tells of a lost pointer."""
    _require_no_directory(root, scenario)
    folders = (COPIES, CURRENT) if (root / CURRENT / f"{scenario}.json").exists() else (CURRENT, COPIES)
    for folder in folders:
        write_json(root / folder / f"{scenario}.json", pointer)


def readable_releases(root: Path, scenario: str) -> dict[str, Release]:
    """Every release of the scenario whose record can be read, by id, published first to last."""
    releases = []
    for path in (root / RELEASES / scenario).glob("[!.]*.json"):
        try:
            releases.append(read_record(path, Release))
        except ArtifactError as error:
            log.error("left out: %s", error)
    return {release.release_id: release for release in sorted(releases, key=lambda release: release.number)}


def whole_release(root: Path, scenario: str, release_id: str) -> Release:
    """A release that a person named; InputError where the store has none, whole."""
    releases = readable_releases(root, scenario)
    if release_id not in releases:
        known = ", ".join(releases) or "none"
        raise InputError(f"{root}: scenario {scenario!r} has no release {release_id!r}; it has: {known}")
    if not is_whole(root, releases[release_id]):
        raise InputError(f"{root}: release {release_id!r} is not whole, some of its parts are gone")
    return releases[release_id]


def chain(releases: Mapping[str, Release]) -> list[str]:
    """The last of these releases, the one before it as its record tells, and so on, as far as they are there."""
    found: list[str] = []
    name = next(reversed(list(releases)), None)
    while name is not None and name in releases and name not in found:
        found.append(name)
        name = releases[name].previous
    return found


def is_whole(root: Path, release: Release) -> bool:
    """Whether all parts of a release are in the store; what they hold is not looked at."""
    paths = release_paths(root, release)
    return all(path is None or is_ready(path) for path in (paths.two_tower, paths.heavy, paths.index))


def _restored(root: Path, scenario: str, error: ArtifactError) -> Pointer | None:
    try:
        copy = _whole_ones(root, scenario, read_record(root / COPIES / f"{scenario}.json", Pointer))
    except ArtifactError as again:
        pointer = _rebuilt(root, scenario)
        log.error(
            "DAMAGED STORE: %s; its copy neither: %s; rebuilt from the records in %s: %s. What was pinned must be "
            "pinned again",
            *(error, again, root / RELEASES / scenario, pointer.names if pointer else "no release is left"),
        )
        return pointer
    log.error("DAMAGED STORE: %s; restored from its copy: %s", error, copy.names)
    return copy


def _whole_ones(root: Path, scenario: str, copy: Pointer) -> Pointer:
    """Without releases that have lost parts: a copy may be ahead of a move that failed, and of a prune after it.

    Raises:
        ArtifactError: None is left.
    """
    releases = readable_releases(root, scenario)
    names = [name for name in copy.names if name in releases and is_whole(root, releases[name])]
    if not names:
        raise ArtifactError(f"{root / COPIES / scenario}.json: none of its releases is whole")
    return msgspec.structs.replace(copy, release=names[0], history=names[:0:-1])


def _rebuilt(root: Path, scenario: str) -> Pointer | None:
    """The release that was published last and is whole, and the chain of those before it."""
    names = chain({name: one for name, one in readable_releases(root, scenario).items() if is_whole(root, one)})
    return Pointer(release=names[0], history=names[:0:-1]) if names else None


def _without_lost(root: Path, scenario: str, pointer: Pointer) -> Pointer | None:
    """Without releases whose record cannot be read: nothing can serve them again."""
    lost = [name for name in pointer.kept if not _has_record(root, scenario, name)]
    if not lost:
        return pointer
    log.error("DAMAGED STORE: releases of %s without a readable record are left out: %s", scenario, ", ".join(lost))
    names = [name for name in pointer.names if name not in lost]
    if not names:
        return _rebuilt(root, scenario)
    pinned = [name for name in pointer.pinned if name not in lost]
    return Pointer(release=names[0], history=names[:0:-1], pinned=pinned)


def _has_record(root: Path, scenario: str, name: str) -> bool:
    try:
        return read_record(record_path(root, scenario, name), Release).release_id == name
    except ArtifactError:
        return False


def _read(root: Path, scenario: str) -> Pointer | None:
    path = root / CURRENT / f"{scenario}.json"
    if path.exists():
        return read_record(path, Pointer)
    if is_lost(root, scenario):
        raise ArtifactError(f"{path}: missing, and the store has releases of {scenario}")
    return None


def _require_no_directory(root: Path, scenario: str) -> None:
    for folder, what in ((CURRENT, "the pointer"), (COPIES, "the copy of the pointer")):
        path = root / folder / f"{scenario}.json"
        if path.is_dir():
            raise ArtifactError(
                f"{path}: is a directory, expected {what}; {_MOVE_IT} and try again: it is restored from what is left"
            )


def _names(folder: Path, suffix: str) -> set[str]:
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return set()
    return {name.removesuffix(suffix) for name in names if name.endswith(suffix) and is_name(name.removesuffix(suffix))}
