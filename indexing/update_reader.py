"""Reads a log of updates: from a position on, or only where it ends, going on from where it was last read."""

import logging
from collections.abc import Iterator
from pathlib import Path

from contracts.errors import ArtifactError
from contracts.release import UpdatePosition
from indexing.update_given import Place, trusted_end
from indexing.update_manifest import MANIFEST, WAY_OUT, LogManifest, read_log_manifest
from indexing.update_record import Update
from indexing.update_scan import SegmentScan

log = logging.getLogger(__name__)


class LogReader:
    """One reader of a log; remembers where its last reading ended, so that following costs what is new.

    Args:
        directory: Of the log.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.damaged = 0
        self.damage: list[str] = []
        self._read_to: tuple[str, Place] | None = None
        self._end: tuple[str, Place] | None = None

    def forget(self) -> None:
        """Begin anew with the next reading."""
        self._read_to = self._end = None

    def end(self) -> UpdatePosition | None:
        """Position of the last update; None before the first append."""
        manifest = read_log_manifest(self.directory)
        while manifest is not None:
            try:
                return UpdatePosition(log=manifest.log, seq=self.find_end(manifest).seq)
            except FileNotFoundError as error:
                manifest = self._newer(manifest, error)
        return None

    def find_end(self, manifest: LogManifest) -> Place:
        """The end of the last whole batch: read on from where it was last seen here, or noted by whoever appended.

        Raises:
            FileNotFoundError: A compaction replaced the last segment.
        """
        last = manifest.segments[-1]
        known = [one[1] for one in (self._read_to, self._end) if one is not None and one[0] == manifest.log]
        noted = trusted_end(self.directory, manifest.log, last.name)
        size = self._size(last.name)
        places = [place for place in (*known, noted) if place is not None and place.segment == last.name]
        start = Place(last.name, 0, last.first - 1)
        place = max((place for place in places if place.offset <= size), key=lambda one: one.offset, default=start)
        scanned = SegmentScan(self.directory / last.name, place.offset, place.seq).finish()
        self.found_end(manifest, Place(last.name, place.offset + scanned.size, scanned.seq))
        return Place(last.name, place.offset + scanned.size, scanned.seq)

    def found_end(self, manifest: LogManifest, place: Place) -> None:
        """Remember where the log ends."""
        self._end = manifest.log, place

    def read(self, after: UpdatePosition | None) -> Iterator[Update]:
        """Updates after a position, in order; a compaction meanwhile is noticed."""
        for updates in self.read_lots(after):
            yield from updates

    def read_lots(self, after: UpdatePosition | None) -> Iterator[list[Update]]:
        """As :meth:`read`, some thousands at once."""
        manifest = read_log_manifest(self.directory)
        if manifest is None:
            return
        seq = seq_in(manifest, after)
        while True:
            try:
                for updates in self._read(manifest, seq):
                    seq = updates[-1].seq
                    yield updates
                return
            except FileNotFoundError as error:
                newer = self._newer(manifest, error)
                seq, manifest = (seq if newer.log == manifest.log else 0), newer

    def rest(self, place: Place) -> bytes:
        """What a segment holds from a place on.

        Raises:
            FileNotFoundError: The segment is gone.
            ArtifactError: It cannot be read.
        """
        path = self.directory / place.segment
        try:
            with open(path, "rb") as file:
                file.seek(place.offset)
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error

    def _read(self, manifest: LogManifest, after: int) -> Iterator[list[Update]]:
        for place in self._places(manifest, after):
            scanned = SegmentScan(self.directory / place.segment, place.offset, place.seq)
            for updates in scanned:
                if new := [update for update in updates if update.seq > after]:
                    yield new
            if scanned.damaged:
                self._note_damage(place, scanned.damaged)
            self._read_to = manifest.log, Place(place.segment, place.offset + scanned.size, scanned.seq)

    def _places(self, manifest: LogManifest, after: int) -> Iterator[Place]:
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
            yield known[1] if resumes and known is not None else Place(segment.name, 0, segment.first - 1)

    def _note_damage(self, place: Place, lines: list[int]) -> None:
        self.damaged += len(lines)
        path, named = self.directory / place.segment, ", ".join(map(str, lines[:5]))
        where = f"lines {named} after byte {place.offset}" if place.offset else f"lines {named}"
        self.damage.append(f"{path}: {where}{', ...' if len(lines) > 5 else ''}")
        log.error("%s: %d damaged lines are skipped, their updates are lost", path, len(lines))

    def _size(self, segment: str) -> int:
        return (self.directory / segment).stat().st_size

    def _newer(self, manifest: LogManifest, error: FileNotFoundError) -> LogManifest:
        """The manifest where a compaction has replaced the one that was read."""
        newer = read_log_manifest(self.directory)
        if newer is None or newer == manifest:
            path = self.directory / Path(str(error.filename)).name
            raise ArtifactError(f"{path}: a segment that {MANIFEST} names is missing; {WAY_OUT}") from None
        return newer


def seq_in(manifest: LogManifest, position: UpdatePosition | None) -> int:
    """The number of a position in a log; 0 where it is of another."""
    return position.seq if position is not None and position.log == manifest.log else 0
