"""Files of a store: where they are, how they are read, and how an artifact is brought in and checked.

bundles/<version>/, indexes/<version>/      verified copies (hard links where the file system allows)
releases/<scenario>/<release>.json          what serves together; written once
current/<scenario>.json                     the pointer: the release that serves, and those before it
copies/<scenario>.json                      the pointer once more, for the day when it cannot be read
updates/                                    the log of updates
"""

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from contracts.artifact import (
    MANIFEST,
    PARTIAL_SUFFIX,
    TEMPORARY_SUFFIX,
    FileEntry,
    publishing,
    read_manifest,
    verify_files,
)
from contracts.bundle import BundleManifest, open_bundle
from contracts.errors import ArtifactError, InputError
from contracts.names import MadeName, MadeNameOrEmpty
from contracts.release import IndexManifest, Judgement, Release, check_pairing
from indexing.lost_log import NOTE
from indexing.overlay_stops import HOSTS, STOPS
from indexing.update_log import UpdateLog

BUNDLES: Literal["bundles"] = "bundles"
INDEXES: Literal["indexes"] = "indexes"
RELEASES, CURRENT, COPIES, UPDATES = "releases", "current", "copies", "updates"
FOLDERS = frozenset({BUNDLES, INDEXES, RELEASES, CURRENT, COPIES, UPDATES})
_BESIDE = frozenset({NOTE, HOSTS, STOPS, "overlays", "lost+found"})
"""What a service that waits for the first release, or the file system, leaves in the directory of a store."""

Kind = Literal["bundles", "indexes"]
"""What holds an artifact's copy."""

T = TypeVar("T")


class Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The release that serves a scenario, and the ones that a rollback steps back to, newest last.

    ``pinned`` are releases that ``prune`` leaves, in that history or not.
    """

    release: MadeNameOrEmpty
    history: list[MadeName] = []
    pinned: list[MadeName] = []

    @property
    def names(self) -> list[str]:
        """Current and earlier releases, newest first."""
        return [self.release, *reversed(self.history)]

    @property
    def kept(self) -> list[str]:
        """Everything that it names, each once."""
        return list(dict.fromkeys([*self.names, *self.pinned]))

    def stepped_to(self, release: str) -> "Pointer":
        """To a release of the history, which drops the later ones from it; any other comes on top."""
        names = [*self.history, self.release]
        history = names[: names.index(release)] if release in names else names
        return msgspec.structs.replace(self, release=release, history=history)


@dataclass(frozen=True)
class ReleasePaths:
    """Where the parts of a release are."""

    two_tower: Path
    heavy: Path | None
    index: Path


@dataclass(frozen=True)
class Parts:
    """Verified manifests that belong together."""

    two_tower: BundleManifest
    heavy: BundleManifest | None
    index: IndexManifest


def is_store(root: Path) -> bool:
    """Whether a directory is a store, or what is left of one that lost some of its folders."""
    found = {name for name in FOLDERS if (root / name).is_dir()}
    of_records = found & {RELEASES, CURRENT, COPIES}
    return len(of_records) > 1 or (len(of_records) == 1 and found >= {BUNDLES, INDEXES})


def foreign(root: Path) -> list[str]:
    """What a directory holds that no store does, sorted; nothing where it is a store, empty, or not there yet."""
    if is_store(root) or not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.name[0] != "." and path.name not in _BESIDE | FOLDERS)


def require_room(root: Path) -> None:
    """Refuse a directory that is neither a store nor empty, with an InputError that says what it holds."""
    if root.is_symlink() and not root.exists():
        raise InputError(
            f"{root}: is a link to {os.readlink(root)}, where nothing is; expected the path of a directory"
        )
    found = foreign(root)
    if found:
        raise InputError(
            f"{root}: holds {', '.join(found[:3])} and is no store; expected a directory that `adsieve index publish` "
            "filled, or an empty one, or one that it is still to make"
        )


def require_store(root: Path) -> None:
    """Refuse a directory that is no store, with an InputError."""
    if not is_store(root):
        raise InputError(f"{root}: no store here, expected a directory that `adsieve index publish` filled")


def refuse_inside(out: Path) -> None:
    """Refuse to make anything inside of a store, with an InputError: what no release names there is removed."""
    store = next((path for path in Path(out).resolve().parents if is_store(path)), None)
    if store is not None:
        raise InputError(
            f"{out}: is inside of the store {store}, where `adsieve index prune` removes what no release names; "
            "expected a directory elsewhere"
        )


def release_paths(root: Path, release: Release) -> ReleasePaths:
    """Where the store at ``root`` keeps the parts of a release."""
    return ReleasePaths(
        two_tower=root / BUNDLES / release.two_tower,
        heavy=root / BUNDLES / release.heavy if release.heavy is not None else None,
        index=root / INDEXES / release.index,
    )


def record_path(root: Path, scenario: str, release_id: str) -> Path:
    """The file that tells what a release consists of."""
    return root / RELEASES / scenario / f"{release_id}.json"


def new_release(
    parts: Parts, *, number: int, previous: str | None, metrics: dict[str, float], judgement: Judgement | None
) -> Release:
    """The record of a release that is published now; its id tells when, and is no other's."""
    now, scenario = datetime.now(UTC), parts.index.scenario
    return Release(
        release_id=f"{scenario}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        scenario=scenario,
        number=number,
        two_tower=parts.two_tower.version,
        heavy=parts.heavy.version if parts.heavy is not None else None,
        index=parts.index.version,
        created_at=now.isoformat(timespec="seconds"),
        previous=previous,
        metrics=metrics,
        judgement=judgement,
    )


def verified_parts(two_tower: Path, heavy: Path | None, index: Path) -> Parts:
    """Check every byte of the parts, and that they belong together.

    Raises:
        ArtifactError: A part is unfinished, truncated or altered.
        MismatchError: The parts do not belong together; see ``contracts.release.check_pairing``.
    """
    manifest = read_manifest(index, IndexManifest)
    parts = Parts(
        two_tower=open_bundle(two_tower, kind="two_tower").manifest,
        heavy=open_bundle(heavy, kind="heavy").manifest if heavy is not None else None,
        index=manifest,
    )
    check_pairing(parts.two_tower, parts.heavy, manifest)
    verify_files(index, manifest.files)
    return parts


def require_updates(log: UpdateLog, index: IndexManifest) -> None:
    """Refuse an index that lacks updates which the log no longer keeps: they would be lost on it for ever.

    Raises:
        ArtifactError: Tells how to build one that has them.
    """
    if not log.covers(index.updates):
        merged = index.updates.seq if index.updates is not None else 0
        raise ArtifactError(
            f"index {index.version} holds the updates up to number {merged}, and {log.directory} no longer keeps all "
            "that come after; build it again with `adsieve index build --store`"
        )


def other_log(log: UpdateLog, index: IndexManifest) -> list[str]:
    """What to tell of an index that has merged updates of another log than its store's; nothing where it has not."""
    manifest = log.manifest()
    if index.updates is None or (manifest is not None and manifest.log == index.updates.log):
        return []
    found = f"index {index.version} has merged updates up to number {index.updates.seq} of log {index.updates.log}"
    if manifest is None:
        return [
            f"{found}, and this store has no log of updates: `adsieve index update` takes nothing here before that log "
            "is restored or another one is begun with --new-log"
        ]
    return [
        f"{found}, which is not this store's, {manifest.log}: all updates of this store count as later than the index, "
        "and what was taken down in the other log and not here can come back; build it again with `--store`"
    ]


def place(source: Path, target: Path, entries: Mapping[str, FileEntry]) -> None:
    """Bring what the manifest of an artifact names into the store, unless a sound copy is there; a damaged one goes."""
    if target.exists() and is_sound(target, entries):
        return
    if target.exists() or target.is_symlink():
        remove_directory(target)
    with publishing(target) as aside:
        for name in (MANIFEST, *entries):
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ArtifactError(f"{source / MANIFEST}: names {name!r}, which is outside of it")
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            _link(source / name, aside / name)


def place_parts(root: Path, parts: Parts, two_tower: Path, heavy: Path | None, index: Path) -> None:
    """Bring the parts of a release, whose manifests are given, into the store at ``root``."""
    place(Path(two_tower), root / BUNDLES / parts.two_tower.version, parts.two_tower.files)
    if heavy is not None and parts.heavy is not None:
        place(Path(heavy), root / BUNDLES / parts.heavy.version, parts.heavy.files)
    place(Path(index), root / INDEXES / parts.index.version, parts.index.files)


def is_sound(directory: Path, entries: Mapping[str, FileEntry]) -> bool:
    """Whether every file is there and unaltered."""
    try:
        verify_files(directory, entries)
        read_manifest(directory, msgspec.Raw)
    except ArtifactError:
        return False
    return True


def remove_directory(path: Path) -> None:
    """Remove an artifact so that nobody finds half of one: hidden in one step, then removed; of a link the link."""
    abandoned = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    os.rename(path, abandoned)
    _remove(abandoned)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_leftovers(root: Path) -> None:
    """Remove what dead writers left; under the store's lock there are no others."""
    for kind in (BUNDLES, INDEXES):
        for path in (root / kind).glob(f".*{PARTIAL_SUFFIX}"):
            _remove(path)
    for folder in (RELEASES, CURRENT, COPIES):
        for path in (root / folder).rglob(f".*{TEMPORARY_SUFFIX}"):
            path.unlink()


def read_record(path: Path, type_: type[T]) -> T:
    """Read one JSON file of the store.

    These files carry no checksum of their own: what they name is an address of its content, so that an altered name is
    that of nothing, and the parts under a name are compared with their checksums.

    Raises:
        ArtifactError: It is missing or not readable; the message names it.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except FileNotFoundError:
        raise ArtifactError(f"{path}: missing") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: not readable as {type_.__name__}: {error}") from error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
