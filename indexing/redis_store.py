"""A store in Redis for several hosts: Redis carries releases and updates, and each host reads its own mirror of them.

Everything is read from the mirror, a directory store: no request waits for Redis, and a host serves on while Redis is
down, slow or empty. ``refresh`` brings in what others published. Whoever changes something first brings the mirror up
to date, then makes the change in the mirror by the code that a directory store has; just before the mirror's pointer
moves, the parts are uploaded and the pointer in Redis moves in one transaction, or the change is made again upon what
somebody else made of it. Redis found emptier than the mirror is filled from it by the next publish.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from contracts.errors import AdsieveError, ArtifactError, MismatchError
from contracts.release import Judgement, Release, UpdatePosition
from indexing.prune import Pruned
from indexing.redis_connect import Connection, connect
from indexing.redis_mirror import RedisMirror
from indexing.redis_parts import Part, parts_of
from indexing.redis_pointers import (
    TRIES,
    Followed,
    MovedError,
    PointerRecord,
    Seen,
    is_behind,
    move,
    next_record,
    read_followed,
    read_pointers,
    remember,
)
from indexing.redis_prune import prune_redis
from indexing.redis_pull import DamagedPartError, doubt, settle
from indexing.redis_rebuild import loss, lost_pointers, rebuild
from indexing.redis_updates import GRACE_S, UpdateStream
from indexing.redis_upload import are_links, ensure, sweep
from indexing.store import DirectoryStore
from indexing.store_files import BUNDLES, INDEXES, Pointer, ReleasePaths, verified_parts
from indexing.store_recovery import is_whole, readable_releases, usable_pointer
from indexing.update_log import UpdateLog
from indexing.update_record import Updates

log = logging.getLogger(__name__)

T = TypeVar("T")


class RedisStore:
    """Releases in Redis, read from a local mirror. One object serves one thread.

    What the methods that :class:`indexing.stores.Store` names do and raise is told by ``DirectoryStore``; beyond that,
    those that ask Redis raise ``RedisError`` where it cannot be reached in time, and change nothing then.

    Args:
        url: Of the server, see ``indexing.redis_connect``.
        local: Directory of the mirror; created when needed.
        grace_s: How long running hosts have to bring back updates that a restarted Redis lost.
    """

    def __init__(self, url: str, local: Path, *, grace_s: float = GRACE_S) -> None:
        self.root = Path(local)
        self._mirror = DirectoryStore(self.root)
        self._connection: Connection = connect(url)
        self._stream = UpdateStream(self._connection, self._mirror.update_log(), grace_s=grace_s)
        self._incoming = RedisMirror(self._connection, self.root, self._stream)

    @property
    def local(self) -> DirectoryStore:
        """The mirror, where readers map files."""
        return self._mirror

    def scenarios(self) -> list[str]:
        return self._mirror.scenarios()

    def current(self, scenario: str) -> Release | None:
        return self._mirror.current(scenario)

    def list(self, scenario: str) -> list[Release]:
        return self._mirror.list(scenario)

    def names(self, scenario: str) -> Sequence[str]:
        return self._mirror.names(scenario)

    def release(self, scenario: str, name: str) -> Release:
        return self._mirror.release(scenario, name)

    def pointer(self, scenario: str) -> Pointer | None:
        return self._mirror.pointer(scenario)

    def paths(self, release: Release) -> ReleasePaths:
        return self._mirror.paths(release)

    def update_log(self) -> UpdateLog:
        """The mirror's copy of the log."""
        return self._mirror.update_log()

    def refresh(self) -> None:
        """Bring into the mirror what Redis has of updates and releases, unless another process of the host does so.

        A release whose parts do not come whole is not followed; the others are. The mirror never goes back because
        Redis did. Files of releases that are no longer kept are removed.

        Raises:
            RedisError: Redis cannot be reached in time.
            ArtifactError: Something in Redis is damaged; the mirror is as it was in that respect.
        """
        with self._incoming.puller(wait=False) as mine:
            if mine:
                self._stream.follow()
                changed, failures = self._incoming.follow(read_pointers(self._connection), history=True)
                settle(self.root)
                if changed:
                    self._incoming.remove_unused()
                if failures:
                    raise failures[0]

    def publish(
        self,
        *,
        two_tower: Path,
        heavy: Path | None,
        index: Path,
        metrics: Mapping[str, float] | None = None,
        judgement: Judgement | None = None,
    ) -> Release:
        """As a directory store does it, then in Redis; and bring back what Redis lost and the mirror holds."""

        def change(store: DirectoryStore) -> Release:
            return store.publish(two_tower=two_tower, heavy=heavy, index=index, metrics=metrics, judgement=judgement)

        with self._incoming.puller():
            self._stream.follow()
            if self._offered_parts_are_needed():
                self._place(two_tower, heavy, index)
            given = [path for path in (two_tower, heavy, index) if path is not None]
            release = self._change(change, given=given)
            try:
                self._repair()
                sweep(self._connection)
            except AdsieveError as error:
                log.error("%s is published; bringing back what Redis had lost failed: %s", release.release_id, error)
            return release

    def lost(self) -> Sequence[str]:
        """Scenarios that the mirror or Redis has releases of, and Redis no pointer; ``publish`` repairs it."""
        seen = read_pointers(self._connection)
        return sorted((set(self.scenarios()) - seen.raw.keys()).union(lost_pointers(self._connection, seen)))

    def doubt(self, release: Release) -> None:
        """Have the mirror's parts of a release compared with their checksums, and pulled again where they differ."""
        for part in parts_of(self.root, release):
            doubt(part, self.root)

    def rollback(self, scenario: str, to: str | None = None, *, current: str | None = None) -> Release:
        """As a directory store does it; what is damaged in the mirror is pulled again first."""
        try:
            return self._changed(lambda store: store.rollback(scenario, to, current=current))
        except MismatchError:
            raise
        except ArtifactError as error:
            log.error("%s; its parts are pulled again where they are damaged", error)
            for release in self.list(scenario):
                self.doubt(release)
            return self._changed(lambda store: store.rollback(scenario, to, current=current))

    def pin(self, scenario: str, release_id: str) -> None:
        self._changed(lambda store: store.pin(scenario, release_id))

    def unpin(self, scenario: str, release_id: str) -> None:
        self._changed(lambda store: store.unpin(scenario, release_id))

    def prune(self, keep: int = 3, *, dry_run: bool = False) -> Pruned:
        """As a directory store does it in the mirror, then in Redis: there also uploads whose publisher died."""
        with self._incoming.puller():
            self._stream.follow()
            for scenario in lost_pointers(self._connection, read_pointers(self._connection)):
                raise loss(self._connection, scenario)
            pruned = self._change(lambda store: store.prune(keep, dry_run=dry_run), history=True)
            if not dry_run:
                prune_redis(self._connection)
                self._stream.compact()
            return pruned

    def append_updates(self, updates: Updates) -> UpdatePosition:
        """Append to the log in Redis, where numbers are given; they are as durable as what Redis writes is."""
        return self._stream.append(updates)

    def trace_of_log(self) -> str | None:
        """What tells that there was a log of updates which neither Redis nor the mirror holds any more."""
        return self._mirror.trace_of_log() or self._stream.trace()

    def _changed(self, change: Callable[[DirectoryStore], T]) -> T:
        with self._incoming.puller():
            self._stream.follow()
            return self._change(change, history=True)

    def _change(self, change: Callable[[DirectoryStore], T], *, history: bool = False, given: Sequence[Path] = ()) -> T:
        """Bring the mirror up to date and change both, again where somebody else was faster.

        Args:
            given: What the change verifies, every byte, before it moves a pointer.
        """
        for _ in range(TRIES):
            seen = self._with_lost(read_pointers(self._connection))
            _, failures = self._incoming.follow(seen, history=history)
            for failure in failures:
                log.error("left out: %s", failure)
            moved: dict[str, PointerRecord] = {}
            try:
                result = change(DirectoryStore(self.root, before_move=self._mover(seen, moved, given)))
            except MovedError as error:
                log.info("%s; once more", error)
                continue
            for scenario, record in moved.items():
                remember(self.root, scenario, record)
            return result
        raise AdsieveError(f"{self._connection.name}: others moved pointers {TRIES} times meanwhile, try again")

    def _with_lost(self, seen: Seen) -> Seen:
        """The pointers, with those rebuilt that are lost in Redis and that the mirror does not have either."""
        lost = [name for name in lost_pointers(self._connection, seen) if name not in self.scenarios()]
        for scenario in lost:
            with suppress(MovedError):  # another host was faster
                names = rebuild(self._connection, scenario)
                log.error("%s; rebuilt from the records of its releases: %s", loss(self._connection, scenario), names)
        return read_pointers(self._connection) if lost else seen

    def _mover(
        self, seen: Seen, moved: dict[str, PointerRecord], given: Sequence[Path]
    ) -> Callable[[str, Pointer], None]:
        followed = read_followed(self.root)

        def before_move(scenario: str, pointer: Pointer) -> None:
            record = next_record(pointer, seen.records.get(scenario), followed.get(scenario))
            self._move(scenario, record, seen.raw.get(scenario), given)
            moved[scenario] = record

        return before_move

    def _move(self, scenario: str, record: PointerRecord, seen: bytes | None, given: Sequence[Path] = ()) -> None:
        """Upload what the pointer needs, as far as it is here, and move it in Redis."""
        known = readable_releases(self.root, scenario)
        releases = [known[name] for name in record.pointer.kept if name in known]
        needed = parts_of(self.root, known[record.pointer.release])
        verified = [part.name for part in needed if any(are_links(part, Path(source)) for source in given)]
        ensure(self._connection, needed, self._incoming.between, verified=verified)
        self._ensure_earlier([part for release in releases for part in parts_of(self.root, release)])
        names = [part.name for part in needed]
        move(self._connection, scenario, record, seen=seen, releases=releases, parts=names)

    def _ensure_earlier(self, parts: Sequence[Part]) -> None:
        """Upload again what Redis lost of earlier releases; a damaged copy of one holds nothing up."""
        for part in dict.fromkeys(parts):
            try:
                if part.is_here:
                    ensure(self._connection, [part], self._incoming.between)
            except ArtifactError as error:
                log.error("an earlier release cannot be brought back: %s", error)

    def _repair(self) -> None:
        """Bring back into Redis the pointers that it lost, and parts that a host missed."""
        seen, followed = read_pointers(self._connection), read_followed(self.root)
        for scenario in self._mirror.scenarios():
            own = usable_pointer(self.root, scenario)
            if own is None or not is_whole(self.root, self._mirror.release(scenario, own.release)):
                continue
            record, mine = seen.records.get(scenario), followed.get(scenario)
            if is_behind(record, mine, own):
                log.warning("%s lost releases of %s: they are uploaded again", self._connection.name, scenario)
                self._move(scenario, _restored(own, mine), seen.raw.get(scenario))
            else:
                known = readable_releases(self.root, scenario).values()
                kept = [part for one in known if one.release_id in own.kept for part in parts_of(self.root, one)]
                self._ensure_earlier(kept)

    def _offered_parts_are_needed(self) -> bool:
        """Whether what shall be published may be the only whole copy of what a pointer in Redis names."""
        _, failures = self._incoming.follow(read_pointers(self._connection), history=False)
        return any(isinstance(failure, DamagedPartError) for failure in failures)

    def _place(self, two_tower: Path, heavy: Path | None, index: Path) -> None:
        parts = verified_parts(two_tower, heavy, index)
        self._mirror.place(BUNDLES, parts.two_tower.version, Path(two_tower), parts.two_tower.files)
        if heavy is not None and parts.heavy is not None:
            self._mirror.place(BUNDLES, parts.heavy.version, Path(heavy), parts.heavy.files)
        self._mirror.place(INDEXES, parts.index.version, Path(index), parts.index.files)


def _restored(own: Pointer, followed: Followed | None) -> PointerRecord:
    """The record of a pointer that nobody moved."""
    if followed is None:
        return next_record(own, None, None)
    return PointerRecord(pointer=own, token=followed.tokens[-1], serial=followed.serial, restored=True)
