"""A directory that holds what serves: bundles, indexes, releases, and one pointer a scenario that moves in one step.

Readers take no lock: the pointer is replaced by one rename, and what it points to was complete before. Publishers
exclude each other by a lock on ``.lock``. What a killed publisher left is not pointed to, and the next one removes it.
``indexing.store_files`` tells where things are. The order of releases is the pointer's; no clock is asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from msgspec.structs import replace

from contracts.artifact import FileEntry, file_lock, write_json
from contracts.errors import AdsieveError, ArtifactError, InputError, NotCurrentError, WrongArtifactError
from contracts.names import check_made_name, check_name
from contracts.release import Judgement, Release, UpdatePosition
from indexing.lost_log import note_log, trace_of_log
from indexing.prune import Move, Pruned, prune_store
from indexing.store_files import (
    FOLDERS,
    UPDATES,
    Kind,
    Parts,
    Pointer,
    ReleasePaths,
    new_release,
    place,
    place_parts,
    read_record,
    record_path,
    release_paths,
    remove_leftovers,
    require_room,
    require_store,
    require_updates,
    verified_parts,
)
from indexing.store_recovery import (
    is_whole,
    note_first,
    read_pointer,
    readable_releases,
    scenarios,
    usable_pointer,
    whole_release,
    write_pointer,
)
from indexing.update_log import UpdateLog
from indexing.update_record import Updates


class DirectoryStore:
    """Releases in a directory; created at the first publish.

    Args:
        root: The directory.
        before_move: Called under the lock with a scenario and its new pointer; where it raises, the pointer stays.
    """

    def __init__(self, root: Path, *, before_move: Move | None = None) -> None:
        self.root, self._before_move = Path(root), before_move

    @property
    def local(self) -> "DirectoryStore":
        """Where readers map files: here."""
        return self

    def refresh(self) -> None:
        """Nothing: what others publish is in the directory."""

    def lost(self) -> Sequence[str]:
        """No scenario: this is no mirror."""
        return ()

    def doubt(self, release: Release) -> None:
        """Nothing: no other copy is in reach; the next publish of the original replaces a damaged one."""

    def publish(
        self,
        *,
        two_tower: Path,
        heavy: Path | None,
        index: Path,
        metrics: Mapping[str, float] | None = None,
        judgement: Judgement | None = None,
    ) -> Release:
        """Verify the parts, take copies of them, and make them the current release of their scenario.

        Killed at any moment, the scenario keeps its old release or has the new one, whole. A pointer that is gone or
        cannot be read is restored first, as ``indexing.store_recovery`` tells. A damaged copy of a part is replaced.

        Raises:
            InputError: The directory holds something else.
            ArtifactError: A part is unfinished, truncated or altered, or the updates that it lacks are no longer kept.
            MismatchError: The parts do not belong together; see ``contracts.release.check_pairing``.
        """
        if self._before_move is None:  # a mirror is begun by what follows another store
            require_room(self.root)
        parts = verified_parts(two_tower, heavy, index)
        scenario = check_name(parts.index.scenario, "scenario")
        with self._locked():
            require_updates(self.update_log(), parts.index)
            note_log(self.root, self.update_log().id)  # of a store that is older than such notes
            place_parts(self.root, parts, two_tower, heavy, index)
            return self._point_to_new(scenario, parts, dict(metrics or {}), judgement)

    def scenarios(self) -> list[str]:
        """Names of the scenarios that have a release, sorted, also of those whose pointer is lost."""
        return scenarios(self.root)

    def current(self, scenario: str) -> Release | None:
        """Return the release that serves ``scenario``, or None before the first.

        Raises:
            ArtifactError: The pointer or the release it names cannot be read.
        """
        pointer = self.pointer(scenario)
        return None if pointer is None else self.release(scenario, pointer.release)

    def list(self, scenario: str) -> list[Release]:
        """Return the current release and those that a rollback can reach, newest first; errors as of ``current``."""
        return [self.release(scenario, name) for name in self.names(scenario)]

    def names(self, scenario: str) -> Sequence[str]:
        """Return the ids of the releases that ``list`` reads, without reading them."""
        pointer = self.pointer(scenario)
        return () if pointer is None else pointer.names

    def release(self, scenario: str, name: str) -> Release:
        """Return one release by its id; ArtifactError where it cannot be read."""
        return read_record(record_path(self.root, scenario, name), Release)

    def pointer(self, scenario: str) -> Pointer | None:
        """Return what serves, what a rollback steps back to and what is pinned; errors as of ``current``."""
        return read_pointer(self.root, check_name(scenario, "scenario"))

    def paths(self, release: Release) -> ReleasePaths:
        """Return where the store keeps the parts of a release."""
        return release_paths(self.root, release)

    def rollback(self, scenario: str, to: str | None = None, *, current: str | None = None) -> Release:
        """Verify an earlier release, every byte, and point to it again. Updates in effect stay in effect.

        Args:
            scenario: Whose pointer moves.
            to: Id of the release; without it, the one before the current. One that is in the store and not in the
                history, since somebody rolled back from it or pinned it, joins the history as a new one would.
            current: The release that the caller takes for the current one; compared under the lock.

        Raises:
            InputError: There is none, or no store.
            NotCurrentError: Another release than ``current`` is the current one.
            ArtifactError, MismatchError: It is damaged; the pointer stays.
        """
        with self._existing(scenario) as pointer:
            if current not in (None, pointer.release):
                found = f"the current release of scenario {scenario!r} is {pointer.release}, not {current}"
                raise NotCurrentError(f"{found}; nothing was moved")
            release = self._target(scenario, pointer, to)
            paths = self.paths(release)
            try:
                parts = verified_parts(paths.two_tower, paths.heavy, paths.index)
            except WrongArtifactError as error:  # of the store itself, so nobody handed in a wrong path
                raise ArtifactError(str(error)) from error
            require_updates(self.update_log(), parts.index)
            self._move(scenario, pointer.stepped_to(release.release_id))
            return release

    def pin(self, scenario: str, release_id: str) -> None:
        """Keep a release from ``prune`` until it is unpinned.

        Raises:
            InputError: The store has no such release, whole.
        """
        with self._existing(scenario) as pointer:
            whole_release(self.root, scenario, release_id)
            others = [name for name in pointer.pinned if name != release_id]
            self._move(scenario, replace(pointer, pinned=[*others, release_id]))

    def unpin(self, scenario: str, release_id: str) -> None:
        """Give a release back to ``prune``; InputError where it is not pinned."""
        with self._existing(scenario) as pointer:
            if release_id not in pointer.pinned:
                raise InputError(f"{self.root}: {release_id!r} of scenario {scenario!r} is not pinned")
            self._move(scenario, replace(pointer, pinned=[name for name in pointer.pinned if name != release_id]))

    def prune(self, keep: int = 3, *, dry_run: bool = False) -> Pruned:
        """Remove what neither serves nor is within reach: see ``indexing.prune``.

        Raises:
            InputError: ``keep`` is below 1, or there is no store.
            ArtifactError: A pointer is gone or cannot be read, so that nobody knows what serves; nothing was removed.
        """
        if keep < 1:
            raise InputError(f"keep: expected at least 1 release a scenario, got {keep}")
        require_store(self.root)
        with nullcontext() if dry_run else self._locked():
            return prune_store(self.root, keep, move=self._move, dry_run=dry_run)

    def update_log(self) -> UpdateLog:
        """The log of updates through the day."""
        return UpdateLog(self.root / UPDATES)

    def append_updates(self, updates: Updates) -> UpdatePosition:
        """Add updates to the log, in this order; durable when it returns the position of the last one."""
        log = self.update_log()
        note_log(self.root, log.id or log.append([]).log)  # first: a log of acknowledged updates is known to exist
        return log.append(updates)

    def trace_of_log(self) -> str | None:
        """What tells that the store had a log of updates; None where nothing does."""
        return trace_of_log(self.root)

    def place(self, kind: Kind, version: str, source: Path, entries: Mapping[str, FileEntry]) -> Path:
        """Bring one artifact in without a release, as a mirror of another store does.

        Args:
            kind: ``bundles`` or ``indexes``.
            version: Of the artifact.
            source: Directory with its files, on the same file system to cost no copy.
            entries: What its manifest says of them; checked by the caller.
        """
        target = self.root / kind / check_made_name(version, "version")
        with self._locked():
            place(source, target, entries)
        return target

    def adopt(self, scenario: str, pointer: Pointer, releases: Sequence[Release]) -> None:
        """Take over another store's records and then pointer; ArtifactError where a part of what shall serve lacks."""
        check_name(scenario, "scenario")
        by_id = {release.release_id: release for release in releases}
        if pointer.release not in by_id or not is_whole(self.root, by_id[pointer.release]):
            raise ArtifactError(f"{self.root}: release {pointer.release} of {scenario} is not here whole")
        with self._locked():
            for release in releases:
                self._record(release)
            self._move(scenario, pointer)

    def restore(self, scenario: str) -> None:
        """Write a pointer that is gone or damaged again, as far as that can be done."""
        with self._existing(scenario) as pointer:
            self._move(scenario, pointer)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        for name in FOLDERS - {UPDATES}:  # those are made by their log
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / ".lock").touch()
        with file_lock(self.root / ".lock"):
            remove_leftovers(self.root)
            yield

    @contextmanager
    def _existing(self, scenario: str) -> Iterator[Pointer]:
        """The pointer of a scenario that has one, under the lock."""
        check_name(scenario, "scenario")
        require_store(self.root)
        with self._locked():
            pointer = usable_pointer(self.root, scenario)
            if pointer is None:
                known = ", ".join(self.scenarios()) or "none"
                raise InputError(f"{self.root}: scenario {scenario!r} has no release; the store has: {known}")
            yield pointer

    def _target(self, scenario: str, pointer: Pointer, to: str | None) -> Release:
        if to is not None:
            return whole_release(self.root, scenario, to)
        if not pointer.history:
            raise InputError(f"{self.root}: scenario {scenario!r} has no earlier release to roll back to")
        return self.release(scenario, pointer.history[-1])

    def _point_to_new(
        self, scenario: str, parts: Parts, metrics: dict[str, float], judgement: Judgement | None
    ) -> Release:
        before = usable_pointer(self.root, scenario)
        release = new_release(
            parts,
            number=1 + max((one.number for one in readable_releases(self.root, scenario).values()), default=0),
            previous=before.release if before is not None else None,
            metrics=metrics,
            judgement=judgement,
        )
        self._record(release)
        stepped = before.stepped_to(release.release_id) if before is not None else Pointer(release=release.release_id)
        try:
            self._move(scenario, stepped)
        except AdsieveError:  # another was faster, or told of no success: whoever follows a pointer to it records it
            record_path(self.root, scenario, release.release_id).unlink(missing_ok=True)
            raise
        return release

    def _record(self, release: Release) -> None:
        note_first(self.root, release.scenario)
        write_json(record_path(self.root, release.scenario, release.release_id), release)

    def _move(self, scenario: str, pointer: Pointer) -> None:
        if self._before_move is not None:
            self._before_move(scenario, pointer)
        write_pointer(self.root, scenario, pointer)
