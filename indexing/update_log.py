"""The log of updates: append-only files with one numbering, read by position, never changed in place.

    updates/log.json         id of the log, its segments in order, how far it was compacted; replaced by one rename
    updates/FIRST-X.jsonl    segments, see ``indexing.update_segment``; FIRST is the number of the first update
    updates/given            id, floor and last number of the log, written before an update: none is given twice
    updates/.lock            held by whoever appends or compacts; readers need none

A position is the log's id and the number of the last update taken into account. Numbers only grow, and compaction
keeps them, so a position stays good for ever; one of another log counts as none. A log that is begun anew, because
everything was lost, has another id.
"""

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from contracts.artifact import file_lock, fsync, write_json
from contracts.errors import AdsieveError, ArtifactError, InputError
from contracts.release import UpdatePosition
from indexing.update_given import Given, note_given, read_given
from indexing.update_manifest import MANIFEST, LogManifest, Segment, check_manifest, is_segment
from indexing.update_record import Update, check_update
from indexing.update_segment import cut_seq, encode_batch, scan

log = logging.getLogger(__name__)

SEGMENT_BYTES = 8 << 20
LEAP = 1024
"""Where nobody knows which numbers were given, the next one is the first after a multiple of this."""

_WAY_OUT = (
    "restore the directory from a backup; the next `adsieve index update` builds log.json again where that can be "
    "done, and with --new-log begins another log"
)


class _Place(msgspec.Struct, frozen=True):
    """After a whole batch: segment, bytes of it that were read, number of the last update."""

    segment: str
    offset: int
    seq: int


class UpdateLog:
    """The log of updates of a store; created by the first append. Objects of several processes may share one directory.

    One object serves one thread. Following the log is cheap: an object remembers where its last reading ended.

    Args:
        directory: Of the log.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.damaged = 0
        """Lines that could not be read, as far as this object has read."""
        self.damage: list[str] = []
        """Where they stand."""
        self._read_to: tuple[str, _Place] | None = None
        self._end: tuple[str, _Place] | None = None

    @property
    def end(self) -> UpdatePosition | None:
        """Position of the last update; None before the first append.

        Raises:
            ArtifactError: The log cannot be read.
        """
        manifest = self.manifest()
        while manifest is not None:
            try:
                return UpdatePosition(log=manifest.log, seq=self._find_end(manifest).seq)
            except FileNotFoundError as error:
                manifest = self._newer(manifest, error)
        return None

    def manifest(self) -> LogManifest | None:
        """What the log consists of now; None before the first append."""
        path = self.directory / MANIFEST
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=LogManifest)
            check_manifest(manifest)
            return manifest
        except FileNotFoundError:
            self._require_nothing(path)
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise ArtifactError(f"{path}: not the manifest of an update log: {error}; {_WAY_OUT}") from error

    def covers(self, position: UpdatePosition | None) -> bool:
        """Whether the log still holds all that an index merged up to ``position`` lacks."""
        end, manifest = self.end, self.manifest()  # the end, since a log that is broken covers nothing
        return end is None or manifest is None or _seq_in(manifest, position) >= manifest.floor

    def read(self, after: UpdatePosition | None = None) -> Iterator[Update]:
        """Updates after a position, in order; all where it is None or of another log.

        What is appended meanwhile may come or not. Compaction meanwhile is noticed and changes nothing of the effect.

        Raises:
            ArtifactError: The log cannot be read.
        """
        manifest = self.manifest()
        if manifest is None:
            return
        seq = _seq_in(manifest, after)
        while True:
            try:
                for update in self._read(manifest, seq):
                    seq = update.seq
                    yield update
                return
            except FileNotFoundError as error:
                newer = self._newer(manifest, error)
                seq, manifest = (seq if newer.log == manifest.log else 0), newer

    def append(self, updates: Sequence[Update]) -> UpdatePosition:
        """Append updates, all or none, in order; they are on disk when this returns. Their ``seq`` is set here.

        Returns:
            The position of the last one, or the end where there are none.

        Raises:
            InputError: An update holds a value that no reader could use.
            AdsieveError: They could not be written; none was.
            ArtifactError: The log is damaged beyond its lines.
        """
        for place, update in enumerate(updates):
            try:
                check_update(update)
            except InputError as error:
                raise InputError(f"updates[{place}]: {error}") from None
        with self.locked():
            manifest = self._manifest_or_rebuilt() or self._begin(secrets.token_hex(8), floor=0)
            seq = self._last_given(manifest, self._end_of(manifest))
            note_given(self.directory, Given(log=manifest.log, seq=seq + len(updates), floor=manifest.floor))
            numbered = [_with_seq(update, seq + place) for place, update in enumerate(updates, 1)]
            return self._append(manifest, numbered)

    def repair(self) -> None:
        """Build a damaged manifest again, as the next append does; ArtifactError where that cannot be done."""
        try:
            self.manifest()
        except ArtifactError:
            with self.locked():
                self._manifest_or_rebuilt()

    def set_aside(self) -> Path | None:
        """Move the log, whatever is left of it, out of the way of a new one; returns where it is."""
        if not self.directory.is_dir():
            return None
        aside = self.directory.with_name(f"{self.directory.name}-aside-{secrets.token_hex(4)}")
        with self.locked():
            self.directory.rename(aside)
        self._read_to = self._end = None
        return aside

    def append_mirrored(self, updates: Sequence[Update], *, log: str, floor: int = 0) -> UpdatePosition:
        """Append updates of another copy of the log, with the numbers that they have there.

        Those that are here already are passed over. Where the log here has another id, it is begun anew.

        Args:
            updates: In order.
            log: Id of the log that they are of.
            floor: How far that copy was compacted; what this one lacks below it, it will never get.
        """
        with self.locked():
            manifest = self.manifest()
            if manifest is None or manifest.log != log:
                manifest = self._begin(log, floor=floor)
            end = self._end_of(manifest).seq
            if floor > manifest.floor and end < floor:
                manifest = self.replace(manifest, manifest.segments, floor=floor)
            return self._append(manifest, [update for update in updates if update.seq > end])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of those who write."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = self.directory / ".lock"
        lock.touch()
        with file_lock(lock):
            yield

    def replace(self, manifest: LogManifest, segments: Sequence[Segment], *, floor: int) -> LogManifest:
        """Make ``segments`` the log, in one step; under the lock. Files that no manifest names any more are removed."""
        replaced = LogManifest(log=manifest.log, segments=list(segments), floor=floor)
        given = read_given(self.directory, manifest.log)
        note_given(
            self.directory,
            Given(
                log=replaced.log,
                seq=max(segments[-1].first - 1, given.seq if given is not None else 0),
                floor=replaced.floor,
            ),
        )
        write_json(self.directory / MANIFEST, replaced)
        self.remove_strays(replaced)
        return replaced

    def remove_strays(self, manifest: LogManifest) -> None:
        """Remove segments that the manifest does not name: superseded ones, and those of a writer that died."""
        names = {segment.name for segment in manifest.segments}
        for path in self.directory.glob("*.jsonl"):
            if path.name not in names:
                path.unlink()

    def new_segment(self, first: int) -> Segment:
        """Create an empty file for updates from the number ``first`` on; no part of the log before ``replace``."""
        segment = Segment(name=f"{first:016}-{secrets.token_hex(4)}.jsonl", first=first)
        (self.directory / segment.name).touch()
        fsync(self.directory)
        return segment

    def write(self, segment: Segment, offset: int, data: bytes) -> None:
        """Write at the end of a segment and flush it to disk; on an error nothing of it stays."""
        path = self.directory / segment.name
        handle = os.open(path, os.O_WRONLY)
        try:
            _write_all(handle, offset, data)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(handle, offset)
            raise AdsieveError(f"{path}: cannot be written, no update was taken: {error.strerror}") from error
        finally:
            os.close(handle)

    def _begin(self, log_id: str, *, floor: int) -> LogManifest:
        empty = LogManifest(log=log_id, segments=[], floor=floor)
        return self.replace(empty, [self.new_segment(floor + 1)], floor=floor)

    def _append(self, manifest: LogManifest, updates: Sequence[Update]) -> UpdatePosition:
        end = self._end_of(manifest)
        if not updates:
            return UpdatePosition(log=manifest.log, seq=end.seq)
        segment, offset = manifest.segments[-1], end.offset
        rest = self._bytes(end)
        if rest:
            path = self.directory / segment.name
            log.warning("%s: %d bytes of an unfinished append are passed over", path, len(rest))
        if rest or offset >= SEGMENT_BYTES or updates[0].seq > end.seq + 1:
            segment, offset = self.new_segment(updates[0].seq), 0
            manifest = self.replace(manifest, [*manifest.segments, segment], floor=manifest.floor)
        elif offset and not self._ends_line(end):
            self.write(segment, offset, b"\n")
            offset += 1
        data = encode_batch(updates)
        self.write(segment, offset, data)
        self._end = manifest.log, _Place(segment.name, offset + len(data), updates[-1].seq)
        return UpdatePosition(log=manifest.log, seq=updates[-1].seq)

    def _find_end(self, manifest: LogManifest) -> _Place:
        """The end of the last whole batch, read on from where it was last seen."""
        last = manifest.segments[-1]
        place = _Place(last.name, 0, last.first - 1)
        for known in (self._read_to, self._end):
            if known is not None and known[0] == manifest.log and known[1].segment == last.name:
                place = max(place, known[1], key=lambda one: one.offset)
        if place.offset > self._size(last.name):
            place = _Place(last.name, 0, last.first - 1)
        scanned = scan(self._bytes(place), place.seq)
        place = _Place(last.name, place.offset + scanned.size, scanned.seq)
        self._end = manifest.log, place
        return place

    def _read(self, manifest: LogManifest, after: int) -> Iterator[Update]:
        for place in self._places(manifest, after):
            scanned = scan(self._bytes(place), place.seq)
            if scanned.damaged:
                self.damaged += len(scanned.damaged)
                path, lines = self.directory / place.segment, ", ".join(map(str, scanned.damaged[:5]))
                where = f"lines {lines} after byte {place.offset}" if place.offset else f"lines {lines}"
                self.damage.append(f"{path}: {where}{', ...' if len(scanned.damaged) > 5 else ''}")
                log.error("%s: %d damaged lines are skipped, their updates are lost", path, len(scanned.damaged))
            yield from (update for update in scanned.updates if update.seq > after)
            end = _Place(place.segment, place.offset + scanned.size, scanned.seq)
            self._read_to = manifest.log, end

    def _places(self, manifest: LogManifest, after: int) -> Iterator[_Place]:
        """Where to read on from in each segment that may hold what comes after ``after``."""
        known = self._read_to
        for segment, following in zip(manifest.segments, [*manifest.segments[1:], None], strict=True):
            if following is not None and following.first <= after + 1:
                continue
            resumes = (
                known is not None
                and known[0] == manifest.log
                and known[1].segment == segment.name
                and known[1].seq <= after
                and known[1].offset <= self._size(segment.name)
            )
            yield known[1] if resumes and known is not None else _Place(segment.name, 0, segment.first - 1)

    def _bytes(self, place: _Place) -> bytes:
        path = self.directory / place.segment
        try:
            with open(path, "rb") as file:
                file.seek(place.offset)
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error

    def _size(self, segment: str) -> int:
        return (self.directory / segment).stat().st_size

    def _ends_line(self, end: _Place) -> bool:
        return self._bytes(_Place(end.segment, end.offset - 1, 0))[:1] == b"\n"

    def _newer(self, manifest: LogManifest, error: FileNotFoundError) -> LogManifest:
        """The manifest where a compaction has replaced the one that was read."""
        newer = self.manifest()
        if newer is None or newer == manifest:
            path = self.directory / Path(str(error.filename)).name
            raise ArtifactError(f"{path}: a segment that {MANIFEST} names is missing; {_WAY_OUT}") from None
        return newer

    def _end_of(self, manifest: LogManifest) -> _Place:
        """The end, under the lock."""
        for segment in manifest.segments:
            path = self.directory / segment.name
            if not path.is_file():
                raise ArtifactError(f"{path}: a segment that {MANIFEST} names is missing; {_WAY_OUT}")
        return self._find_end(manifest)

    def _last_given(self, manifest: LogManifest, end: _Place) -> int:
        """The largest number that may have been given to an update, whether or not it can still be read."""
        given, rest = read_given(self.directory, manifest.log), self._bytes(end)
        last = cut_seq(rest, end.seq) if rest else end.seq
        if given is not None:
            return max(last, given.seq)
        return -(-(last + 1) // LEAP) * LEAP if rest or end.offset == 0 else last

    def _manifest_or_rebuilt(self) -> LogManifest | None:
        """The manifest; where it is damaged or missing, one of the segments that are here, under the lock."""
        try:
            return self.manifest()
        except ArtifactError as error:
            given = read_given(self.directory)
            if given is None:
                raise
            paths = sorted(self.directory.glob("*.jsonl"))
            segments = [Segment(name=path.name, first=int(path.name[:16])) for path in paths if is_segment(path.name)]
            if not segments or not self._are_apart(segments):
                raise
            log.error("%s; it was built again from its %d segments", error, len(segments))
            return self.replace(LogManifest(log=given.log, segments=segments), segments, floor=given.floor)

    def _are_apart(self, segments: Sequence[Segment]) -> bool:
        """Whether each segment ends before the next one; not where a compaction was killed between two sets of them."""
        ends = [scan(self._bytes(_Place(one.name, 0, 0)), one.first - 1).seq for one in segments]
        return all(end < following.first for end, following in zip(ends, segments[1:], strict=False))

    def _require_nothing(self, path: Path) -> None:
        """Before the first append there is nothing but, after a kill, an empty segment."""
        if any(segment.stat().st_size for segment in self.directory.glob("*.jsonl")) and not path.exists():
            raise ArtifactError(f"{path}: missing, but there are segments of an update log beside it; {_WAY_OUT}")


def _seq_in(manifest: LogManifest, position: UpdatePosition | None) -> int:
    return position.seq if position is not None and position.log == manifest.log else 0


def _with_seq(update: Update, seq: int) -> Update:
    return Update(
        seq=seq,
        ad_id=update.ad_id,
        at=update.at,
        status=update.status,
        bid=update.bid,
        takedown=update.takedown,
        budget=update.budget,
        content=update.content,
    )


def _write_all(handle: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written
    os.fsync(handle)
