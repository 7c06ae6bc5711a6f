"""Removes from a store what neither serves nor is within reach.

Kept are, of every scenario, the current release and the ``keep - 1`` before it, what is pinned, and every part that one
of them uses. The records of all releases stay, which tell what was published when and why. Pointers forget the others
first and files go last, so that a prune killed at any moment leaves only what the next one removes. A service that
still has removed files open or mapped goes on with them: their blocks are freed when it lets go. One that is just about
to open them meets a missing file, refuses that release and reads the pointer again.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from contracts.artifact import read_manifest
from contracts.errors import ArtifactError
from contracts.release import IndexManifest, Release, UpdatePosition
from indexing.compaction import Compaction, check_sound, compact
from indexing.held_content import HeldContent
from indexing.store_files import (
    BUNDLES,
    CURRENT,
    INDEXES,
    RELEASES,
    UPDATES,
    Kind,
    Pointer,
    read_record,
    record_path,
    remove_directory,
)
from indexing.store_recovery import is_whole, read_pointer, readable_releases, scenarios
from indexing.update_log import UpdateLog

Move = Callable[[str, Pointer], None]
"""Writes the pointer of a scenario."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was removed, or would be.

    Args:
        releases: Ids of those that can no longer serve.
        bundles: Versions.
        indexes: Versions.
        updates: Records that the log of updates no longer needs.
        replaced: Of these, how many say nothing that later ones do not say; the others are merged in every index that
            is kept.
        waiting: Ads whose content the indexes have from updates alone: it stays in the log, since the next build would
            miss it, until a catalogue has them.
        bytes: Freed on the disk: files that have another name elsewhere, such as in the directory that was published,
            are not.
    """

    releases: list[str] = field(default_factory=list)
    bundles: list[str] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    updates: int = 0
    replaced: int = 0
    waiting: list[str] = field(default_factory=list)
    bytes: int = 0


def prune_store(root: Path, keep: int, *, move: Move, dry_run: bool = False) -> Pruned:
    """Remove all but what :mod:`indexing.prune` keeps; under the store's lock.

    Raises:
        ArtifactError: A pointer or the record of a kept release is gone or cannot be read, so that nobody knows which
            parts are in use, or the log of updates is damaged; nothing was removed.
    """
    before = _pointers(root)
    pointers = {scenario: _shortened(pointer, keep) for scenario, pointer in before.items()}
    kept = [_record(root, scenario, name) for scenario, pointer in pointers.items() for name in pointer.kept]
    bundles = {name for one in kept for name in (one.two_tower, one.heavy)}
    used: dict[Kind, set[str | None]] = {BUNDLES: bundles, INDEXES: {one.index for one in kept}}
    parts = {kind: _unused(root / kind, names) for kind, names in used.items()}
    removed = Pruned(
        releases=_dropped(root, before, pointers, {path.name for paths in parts.values() for path in paths}),
        bundles=[path.name for path in parts[BUNDLES]],
        indexes=[path.name for path in parts[INDEXES]],
        bytes=_freed([path for paths in parts.values() for path in paths]),
    )
    log = UpdateLog(root / UPDATES)
    merged = [_merged(root, one) for one in kept]
    held = HeldContent(sorted({root / INDEXES / one.index for one in kept}))
    if dry_run:
        return _with(removed, compact(log, merged, held=held, dry_run=True))
    check_sound(log)
    for scenario, pointer in pointers.items():
        if pointer != before[scenario]:
            move(scenario, pointer)
    for path in (path for paths in parts.values() for path in paths):
        remove_directory(path)
    return _with(removed, compact(log, merged, held=held))


def _with(pruned: Pruned, done: Compaction) -> Pruned:
    return replace(pruned, updates=done.before - done.after, replaced=done.replaced, waiting=done.waiting)


def _dropped(
    root: Path, before: Mapping[str, Pointer], after: Mapping[str, Pointer], parts: Collection[str]
) -> list[str]:
    """Releases that were within reach, of the pointer or of ``rollback --to``, and no longer are."""
    found = []
    for folder in sorted((root / RELEASES).glob("*")):
        scenario, empty = folder.name, Pointer(release="")
        named, kept = before.get(scenario, empty).kept, after.get(scenario, empty).kept
        for name, release in readable_releases(root, scenario).items():
            loses = is_whole(root, release) and {release.two_tower, release.heavy, release.index} & set(parts)
            if name not in kept and (name in named or loses):
                found.append(name)
    return found


def _merged(root: Path, release: Release) -> UpdatePosition | None:
    """Which updates its index holds; none of an index that is damaged, so that the log keeps all that it may need."""
    try:
        return read_manifest(root / INDEXES / release.index, IndexManifest).updates
    except ArtifactError:
        return None


def _shortened(pointer: Pointer, keep: int) -> Pointer:
    """Without what is beyond ``keep``; what is pinned keeps its place in the history.

    Example:
        >>> pointer = Pointer(release="d", history=["a", "b", "c"], pinned=["a"])
        >>> _shortened(pointer, 2).history
        ['a', 'c']
    """
    near = set(pointer.names[:keep]) | set(pointer.pinned)
    return msgspec.structs.replace(pointer, history=[name for name in pointer.history if name in near])


def _pointers(root: Path) -> dict[str, Pointer]:
    found = {}
    for scenario in sorted({*scenarios(root), *(path.stem for path in (root / CURRENT).glob("[!.]*.json"))}):
        pointer = read_pointer(root, scenario)
        if pointer is not None:
            found[scenario] = pointer
    return found


def _record(root: Path, scenario: str, name: str) -> Release:
    try:
        return read_record(record_path(root, scenario, name), Release)
    except ArtifactError as error:
        raise ArtifactError(
            f"{error}; nothing was removed, since its parts are unknown; the next publish leaves it out"
        ) from error


def _unused(folder: Path, used: set[str | None]) -> list[Path]:
    return [path for path in sorted(folder.glob("[!.]*")) if path.name not in used]


def _freed(directories: Sequence[Path]) -> int:
    """Bytes of files all of whose names go."""
    names: dict[int, int] = {}
    freed = 0
    own = [directory for directory in directories if not directory.is_symlink()]
    for path in (path for directory in own for path in directory.rglob("*") if path.is_file()):
        status = path.stat()
        names[status.st_ino] = names.get(status.st_ino, 0) + 1
        if names[status.st_ino] == status.st_nlink:
            freed += status.st_size
    return freed
