"""A directory that holds what serves: bundles, indexes, releases, and one pointer a scenario that moves in one step.

    bundles/<version>/, indexes/<version>/      verified copies (hard links where the file system allows)
    releases/<scenario>/<release>.json          what serves together; written once
    current/<scenario>.json                     the pointer: the release that serves, and those before it

Readers take no lock: the pointer is replaced by one rename, and what it points to was complete before. Publishers
exclude each other by a lock on ``.lock``. What a killed publisher left is not pointed to, and the next one removes it.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from contracts.artifact import (
    PARTIAL_SUFFIX,
    READY,
    TEMPORARY_SUFFIX,
    FileEntry,
    check_name,
    file_lock,
    is_name,
    is_ready,
    publishing,
    read_manifest,
    verify_files,
    write_json,
)
from contracts.bundle import BundleManifest, open_bundle
from contracts.errors import ArtifactError, InputError, WrongArtifactError
from contracts.release import IndexManifest, Release, check_pairing

BUNDLES, INDEXES, RELEASES, CURRENT = "bundles", "indexes", "releases", "current"

T = TypeVar("T")


class Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The release that serves a scenario, and the ones that a rollback steps back to, newest last."""

    release: str
    history: list[str] = []


@dataclass(frozen=True)
class ReleasePaths:
    """Where the parts of a release are."""

    two_tower: Path
    heavy: Path | None
    index: Path


class DirectoryStore:
    """Releases in a directory; created at the first publish.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def publish(
        self, *, two_tower: Path, heavy: Path | None, index: Path, metrics: Mapping[str, float] | None = None
    ) -> Release:
        """Verify the parts, take copies of them, and make them the current release of their scenario.

        Killed at any moment, the scenario keeps its old release or has the new one, whole.

        Raises:
            ArtifactError: A part is unfinished, truncated or altered.
            MismatchError: The parts do not belong together; see ``contracts.release.check_pairing``.
        """
        parts = _verified(two_tower, heavy, index)
        scenario = check_name(parts.index.scenario, "scenario")
        with self._locked():
            self._place(Path(two_tower), self.root / BUNDLES / parts.two_tower.version, parts.two_tower.files)
            if heavy is not None and parts.heavy is not None:
                self._place(Path(heavy), self.root / BUNDLES / parts.heavy.version, parts.heavy.files)
            self._place(Path(index), self.root / INDEXES / parts.index.version, parts.index.files)
            return self._point_to_new(scenario, parts, dict(metrics or {}))

    def scenarios(self) -> list[str]:
        """Names of the scenarios that have a release, sorted; a file whose name no scenario can have is none."""
        try:
            names = os.listdir(self.root / CURRENT)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and is_name(name[:-5]))

    def current(self, scenario: str) -> Release | None:
        """Return the release that serves ``scenario``, or None before the first.

        Raises:
            ArtifactError: The pointer or the release it names cannot be read.
        """
        pointer = self._pointer(scenario)
        return None if pointer is None else self.release(scenario, pointer.release)

    def list(self, scenario: str) -> list[Release]:
        """Return the current release and those that a rollback can reach, newest first; errors as of ``current``."""
        return [self.release(scenario, name) for name in self.names(scenario)]

    def names(self, scenario: str) -> Sequence[str]:
        """Return the ids of the releases that ``list`` reads, without reading them."""
        pointer = self._pointer(scenario)
        return () if pointer is None else (pointer.release, *reversed(pointer.history))

    def release(self, scenario: str, name: str) -> Release:
        """Return one release by its id; ArtifactError where it cannot be read."""
        return _read(self.root / RELEASES / scenario / f"{name}.json", Release)

    def rollback(self, scenario: str) -> Release:
        """Verify the release before the current one and point to it again.

        Raises:
            InputError: There is none, or no store.
            ArtifactError, MismatchError: It is damaged; the pointer stays.
        """
        if not (self.root / CURRENT).is_dir():
            raise InputError(f"{self.root}: no store here, expected a directory that `adsieve index publish` filled")
        with self._locked():
            pointer = self._pointer(scenario)
            if pointer is None or not pointer.history:
                raise InputError(f"{self.root}: scenario {scenario!r} has no earlier release to roll back to")
            release = self.release(scenario, pointer.history[-1])
            paths = self.paths(release)
            try:
                _verified(paths.two_tower, paths.heavy, paths.index)
            except WrongArtifactError as error:  # of the store itself, so nobody handed in a wrong path
                raise ArtifactError(str(error)) from error
            self._move(scenario, Pointer(release=release.release_id, history=pointer.history[:-1]))
            return release

    def paths(self, release: Release) -> ReleasePaths:
        """Return where the store keeps the parts of a release."""
        bundles = self.root / BUNDLES
        return ReleasePaths(
            two_tower=bundles / release.two_tower,
            heavy=bundles / release.heavy if release.heavy is not None else None,
            index=self.root / INDEXES / release.index,
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        for name in (BUNDLES, INDEXES, RELEASES, CURRENT):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        lock = self.root / ".lock"
        lock.touch()
        with file_lock(lock):
            self._remove_leftovers()
            yield

    def _remove_leftovers(self) -> None:
        """Remove what dead publishers left; under the lock there are no others."""
        for folder in (BUNDLES, INDEXES):
            for path in (self.root / folder).glob(f".*{PARTIAL_SUFFIX}"):
                shutil.rmtree(path)
        for folder in (RELEASES, CURRENT):
            for path in (self.root / folder).rglob(f".*{TEMPORARY_SUFFIX}"):
                path.unlink()

    def _place(self, source: Path, target: Path, entries: Mapping[str, FileEntry]) -> None:
        """Bring an artifact into the store, unless a sound copy is there."""
        if target.exists():
            if _is_sound(target, entries):
                return
            abandoned = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
            os.rename(target, abandoned)
            shutil.rmtree(abandoned)
        with publishing(target) as aside:
            for path in sorted(source.rglob("*")):
                copy = aside / path.relative_to(source)
                if path.is_dir():
                    copy.mkdir()
                elif path.name != READY:
                    _link(path, copy)

    def _point_to_new(self, scenario: str, parts: "_Parts", metrics: dict[str, float]) -> Release:
        before = self._pointer(scenario)
        now = datetime.now(UTC)
        release = Release(
            release_id=f"{scenario}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
            scenario=scenario,
            two_tower=parts.two_tower.version,
            heavy=parts.heavy.version if parts.heavy is not None else None,
            index=parts.index.version,
            created_at=now.isoformat(timespec="seconds"),
            previous=before.release if before is not None else None,
            metrics=metrics,
        )
        (self.root / RELEASES / scenario).mkdir(exist_ok=True)
        write_json(self.root / RELEASES / scenario / f"{release.release_id}.json", release)
        history = [*before.history, before.release] if before is not None else []
        self._move(scenario, Pointer(release=release.release_id, history=history))
        return release

    def _move(self, scenario: str, pointer: Pointer) -> None:
        write_json(self.root / CURRENT / f"{scenario}.json", pointer)

    def _pointer(self, scenario: str) -> Pointer | None:
        path = self.root / CURRENT / f"{check_name(scenario, 'scenario')}.json"
        return _read(path, Pointer) if path.exists() else None


@dataclass(frozen=True)
class _Parts:
    """Verified manifests that belong together."""

    two_tower: BundleManifest
    heavy: BundleManifest | None
    index: IndexManifest


def _verified(two_tower: Path, heavy: Path | None, index: Path) -> _Parts:
    manifest = read_manifest(index, IndexManifest)
    parts = _Parts(
        two_tower=open_bundle(two_tower, kind="two_tower").manifest,
        heavy=open_bundle(heavy, kind="heavy").manifest if heavy is not None else None,
        index=manifest,
    )
    check_pairing(parts.two_tower, parts.heavy, manifest)
    verify_files(index, manifest.files)
    return parts


def _is_sound(directory: Path, entries: Mapping[str, FileEntry]) -> bool:
    try:
        verify_files(directory, entries)
    except ArtifactError:
        return False
    return is_ready(directory)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)


def _read(path: Path, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except FileNotFoundError:
        raise ArtifactError(f"{path}: missing") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: not readable as {type_.__name__}: {error}") from error
