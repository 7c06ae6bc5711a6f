"""The log of updates: append-only files with one numbering, read by position, never changed in place.

    updates/log.json         id of the log, its segments in order, how far it was compacted; replaced by one rename
    updates/FIRST-X.jsonl    segments, see ``indexing.update_segment``; FIRST is the number of the first update
    updates/given            see ``indexing.update_given``: none of the log's numbers is given twice
    updates/.lock            held by whoever appends or compacts; readers need none

A position is the log's id and the number of the last update taken into account. Numbers only grow, and compaction
keeps them, so a position stays good for ever; one of another log counts as none. A log that is begun anew, because
everything was lost, has another id.
"""

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace as with_fields

from contracts.artifact import file_lock, fsync
from contracts.errors import AdsieveError, ArtifactError, InputError
from contracts.release import UpdatePosition
from indexing.update_given import Given, Place, note_given, noted_end, read_given
from indexing.update_manifest import (
    MANIFEST,
    WAY_OUT,
    LogManifest,
    Segment,
    read_log_manifest,
    rebuilt_manifest,
    write_log_manifest,
)
from indexing.update_reader import LogReader, seq_in
from indexing.update_record import Update, Updates, check_update
from indexing.update_segment import cut_seq, encode_pieces

log = logging.getLogger(__name__)

SEGMENT_BYTES = 8 << 20
LEAP = 1024
"""Where nobody knows which numbers were given, the next one is the first after a multiple of this."""


class UpdateLog:
    """The log of updates of a store; created by the first append. Objects of several processes may share one directory.

    One object serves one thread. Following the log is cheap: an object remembers where its last reading ended.

    Args:
        directory: Of the log.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self._reader = LogReader(self.directory)

    @property
    def damaged(self) -> int:
        """Lines that could not be read, as far as this object has read."""
        return self._reader.damaged

    @property
    def damage(self) -> list[str]:
        """Where they stand."""
        return self._reader.damage

    @property
    def end(self) -> UpdatePosition | None:
        """Position of the last update; None before the first append.

        Raises:
            ArtifactError: The log cannot be read.
        """
        return self._reader.end()

    @property
    def id(self) -> str | None:
        """Of the log; None where there is none, or its manifest cannot be read."""
        try:
            manifest = self.manifest()
        except ArtifactError:
            return None
        return manifest.log if manifest is not None else None

    def manifest(self) -> LogManifest | None:
        """What the log consists of now; None before the first append."""
        return read_log_manifest(self.directory)

    def covers(self, position: UpdatePosition | None) -> bool:
        """Whether the log still holds all that an index merged up to ``position`` lacks."""
        end, manifest = self.end, self.manifest()  # the end, since a log that is broken covers nothing
        return end is None or manifest is None or seq_in(manifest, position) >= manifest.floor

    def read(self, after: UpdatePosition | None = None) -> Iterator[Update]:
        """Updates after a position, in order; all where it is None or of another log.

        What is appended meanwhile may come or not. Compaction meanwhile is noticed and changes nothing of the effect.

        Raises:
            ArtifactError: The log cannot be read.
        """
        return self._reader.read(after)

    def read_lots(self, after: UpdatePosition | None = None) -> Iterator[list[Update]]:
        """As :meth:`read`, some thousands at once."""
        return self._reader.read_lots(after)

    def append(self, updates: Updates) -> UpdatePosition:
        """Append updates, all or none, in order; they are on disk when this returns. Their ``seq`` is set here.

        It costs what is appended, however long the log is.

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
            end = self._end_of(manifest)
            seq = self._last_given(manifest, end)
            self._note(manifest, seq + len(updates), end)
            numbered = (with_fields(update, seq=seq + place) for place, update in enumerate(updates, 1))
            return self._append(manifest, numbered, end, first=seq + 1, last=seq + len(updates))

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
        self._reader.forget()
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
            end = self._end_of(manifest)
            if floor > manifest.floor and end.seq < floor:
                manifest = self.replace(manifest, manifest.segments, floor=floor)
            new = [update for update in updates if update.seq > end.seq]
            first, last = (new[0].seq, new[-1].seq) if new else (end.seq + 1, end.seq)
            return self._append(manifest, new, end, first=first, last=last)

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
        self._note(replaced, segments[-1].first - 1, None)
        write_log_manifest(self.directory, replaced)
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

    def write(self, segment: Segment, offset: int, data: bytes) -> int:
        """As :meth:`write_pieces`, all at once."""
        return self.write_pieces(segment, offset, [data])

    def write_pieces(self, segment: Segment, offset: int, pieces: Iterable[bytes]) -> int:
        """Write at the end of a segment and flush it to disk; on an error nothing of it stays. Returns the end."""
        path = self.directory / segment.name
        handle = os.open(path, os.O_WRONLY)
        try:
            return _write_all(handle, offset, pieces)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(handle, offset)
            raise AdsieveError(f"{path}: cannot be written, no update was taken: {error.strerror}") from error
        except BaseException:  # of who makes the pieces
            with suppress(OSError):
                os.ftruncate(handle, offset)
            raise
        finally:
            os.close(handle)

    def _begin(self, log_id: str, *, floor: int) -> LogManifest:
        empty = LogManifest(log=log_id, segments=[], floor=floor)
        return self.replace(empty, [self.new_segment(1)], floor=floor)  # what a compaction left stands below its floor

    def _append(
        self, manifest: LogManifest, updates: Iterable[Update], end: Place, *, first: int, last: int
    ) -> UpdatePosition:
        """Append updates with the numbers ``first`` to ``last``, none where there are no such numbers."""
        if last < first:
            return UpdatePosition(log=manifest.log, seq=end.seq)
        segment, offset = manifest.segments[-1], end.offset
        rest = self._reader.rest(end)
        if rest:
            path = self.directory / segment.name
            log.warning("%s: %d bytes of an unfinished append are passed over", path, len(rest))
        if rest or offset >= SEGMENT_BYTES or first > end.seq + 1:
            segment, offset = self.new_segment(first), 0
            manifest = self.replace(manifest, [*manifest.segments, segment], floor=manifest.floor)
        elif offset and not self._ends_line(end):
            self.write(segment, offset, b"\n")
            offset += 1
        end = Place(segment.name, self.write_pieces(segment, offset, encode_pieces(updates)), last)
        self._reader.found_end(manifest, end)
        with suppress(AdsieveError):  # it is found by reading then
            self._note(manifest, end.seq, end)
        return UpdatePosition(log=manifest.log, seq=end.seq)

    def _note(self, manifest: LogManifest, seq: int, end: Place | None) -> None:
        """Note that numbers up to ``seq`` may have been given, and where the log ends."""
        given = read_given(self.directory, manifest.log)
        seq = max(seq, given.seq if given is not None else 0)
        note = noted_end(self.directory, end) if end is not None else None
        note_given(self.directory, Given(log=manifest.log, seq=seq, floor=manifest.floor, end=note))

    def _ends_line(self, end: Place) -> bool:
        return self._reader.rest(Place(end.segment, end.offset - 1, 0))[:1] == b"\n"

    def _end_of(self, manifest: LogManifest) -> Place:
        """The end, under the lock."""
        for segment in manifest.segments:
            path = self.directory / segment.name
            if not path.is_file():
                raise ArtifactError(f"{path}: a segment that {MANIFEST} names is missing; {WAY_OUT}")
        return self._reader.find_end(manifest)

    def _last_given(self, manifest: LogManifest, end: Place) -> int:
        """The largest number that may have been given to an update, whether or not it can still be read."""
        given, rest = read_given(self.directory, manifest.log), self._reader.rest(end)
        last = cut_seq(rest, end.seq) if rest else end.seq
        if given is not None:
            return max(last, given.seq)
        return -(-(last + 1) // LEAP) * LEAP if rest or end.offset == 0 else last

    def _manifest_or_rebuilt(self) -> LogManifest | None:
        """The manifest; where it is damaged or missing, one of the segments that are here, under the lock."""
        try:
            return self.manifest()
        except ArtifactError as error:
            rebuilt = rebuilt_manifest(self.directory)
            if rebuilt is None:
                raise
            log.error("%s; it was built again from its %d segments", error, len(rebuilt.segments))
            return self.replace(rebuilt, rebuilt.segments, floor=rebuilt.floor)


def _write_all(handle: int, offset: int, pieces: Iterable[bytes]) -> int:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            written = os.pwrite(handle, rest, offset)
            rest, offset = rest[written:], offset + written
    os.fsync(handle)
    return offset
