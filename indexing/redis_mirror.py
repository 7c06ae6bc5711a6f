"""Brings a host's mirror up to what Redis says: parts, then pointers; and never back because Redis went back.

pull.lock     in the mirror: held by the one process of the host that brings it up to date
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from contracts.errors import ArtifactError, InputError
from contracts.release import Release
from indexing.redis_connect import Connection
from indexing.redis_origin import note_origin, require_origin
from indexing.redis_parts import parts_of
from indexing.redis_pointers import PointerRecord, Seen, follows, read_followed, read_releases, remember
from indexing.redis_pull import pull, remove_unfinished, settle
from indexing.redis_rebuild import loss, lost_pointers
from indexing.redis_updates import UpdateStream
from indexing.store import DirectoryStore
from indexing.store_files import Pointer
from indexing.store_recovery import readable_releases, usable_pointer

FOLLOW_EVERY_S = 0.5
"""How often updates are followed while parts are transferred."""


class RedisMirror:
    """The reading side of a store in Redis.

    Args:
        connection: To Redis.
        root: Directory of the mirror.
        stream: Of updates.

    Raises:
        InputError: The mirror was filled from another server.
    """

    def __init__(self, connection: Connection, root: Path, stream: UpdateStream) -> None:
        require_origin(root, connection.name)
        self.directory = DirectoryStore(root)
        self._connection, self._root, self._stream = connection, root, stream
        self._refused: dict[str, str] = {}
        self._lost: list[str] = []
        self._followed_at = 0.0

    def follow(self, seen: Seen, *, history: bool) -> tuple[bool, Sequence[ArtifactError]]:
        """Bring in the releases that the pointers name; return whether a pointer moved, and what is damaged."""
        followed, changed = read_followed(self._root), False
        failures: list[ArtifactError] = []
        if not followed:
            self._begin(seen)
        if not followed or self._lost:
            self._lost = [name for name in lost_pointers(self._connection, seen) if not self._has_pointer(name)]
            failures += [loss(self._connection, name) for name in self._lost]
        for scenario in self.directory.scenarios():
            if scenario not in seen.raw and not self._has_pointer(scenario):
                failures += self._restore(scenario)
        for scenario, data in seen.raw.items():
            record = seen.records.get(scenario)
            try:
                if record is None:
                    raise ArtifactError(f"{self._connection.name}: pointer of {scenario!r} is damaged: {data[:80]!r}")
                own, mine = usable_pointer(self._root, scenario), followed.get(scenario)
                is_lost = not self._has_pointer(scenario)
                if follows(record, mine, own) or (is_lost and mine is not None and record.token == mine.tokens[-1]):
                    self._adopt(scenario, record)
                    changed = True
                elif is_lost:
                    failures += self._restore(scenario)
                if history:
                    self._bring_history(scenario, record.pointer)
            except ArtifactError as error:
                failures.append(error)
        return changed, failures

    def _begin(self, seen: Seen) -> None:
        """Bring in the parts of all scenarios before the first pointer: a new host is ready once it has all of them."""
        for scenario, record in seen.records.items():
            with suppress(ArtifactError):  # told when it is followed
                for release in read_releases(self._connection, scenario, [record.pointer.release]):
                    self._bring(release)

    def _has_pointer(self, scenario: str) -> bool:
        """Whether the mirror's pointer is there and can be read."""
        try:
            return self.directory.pointer(scenario) is not None
        except ArtifactError:
            return False

    def _restore(self, scenario: str) -> list[ArtifactError]:
        """Write the mirror's own pointer again, which is lost, where Redis says nothing that it has not followed."""
        try:
            self.directory.restore(scenario)
        except (ArtifactError, InputError) as error:
            return [ArtifactError(str(error))]
        return []

    def _adopt(self, scenario: str, record: PointerRecord) -> None:
        names = record.pointer.kept
        releases = {one.release_id: one for one in read_releases(self._connection, scenario, names)}
        if record.pointer.release not in releases:
            raise ArtifactError(f"{self._connection.name}: release {record.pointer.release} of {scenario} is missing")
        self._bring(releases[record.pointer.release])
        self.directory.adopt(scenario, record.pointer, list(releases.values()))
        remember(self._root, scenario, record)

    def _bring_history(self, scenario: str, pointer: Pointer) -> None:
        """What a rollback may need; where nobody has it any more, the release that serves is not held up."""
        known = readable_releases(self._root, scenario)
        for name in pointer.kept:
            if name in known:
                self._bring(known[name])

    def _bring(self, release: Release) -> None:
        for part in parts_of(self._root, release):
            if not part.is_here:
                pull(self._connection, part, self._root, self.between, refused=self._refused)

    def remove_unused(self) -> None:
        """Remove from the mirror what no pointer names any more, once all that they name is there."""
        pointers = [self.directory.pointer(scenario) for scenario in self.directory.scenarios()]
        self.directory.prune(max((len(pointer.names) for pointer in pointers if pointer is not None), default=1))

    def between(self) -> None:
        """Between two chunks of a long transfer: updates do not wait for it."""
        if time.monotonic() - self._followed_at > FOLLOW_EVERY_S:
            self._stream.follow()
            self._followed_at = time.monotonic()

    @contextmanager
    def puller(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of the mirror's puller; false where another process has it and nobody waits."""
        handle = self._lock_file()
        try:
            mine = _lock(handle, wait=wait)
            if mine:
                remove_unfinished(self._root)
                settle(self._root)
                self._followed_at = time.monotonic()
            yield mine
            if mine:
                note_origin(self._root, self._connection.name)
        finally:
            os.close(handle)

    def _lock_file(self) -> int:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            return os.open(self._root / "pull.lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise InputError(
                f"{self._root}: cannot mirror {self._connection.name}: {error.strerror}; --local or ADSIEVE_LOCAL "
                "names another directory"
            ) from error


def _lock(handle: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
