"""What a log of updates notes beside its segments: which numbers it has given, and where it ended.

The numbers are noted before an update is written, so that none is given twice, whatever happens to the segment. The end
is noted once an update is on disk, so that the next append need not read the segment: it costs what is appended,
however long the log is. An end that cannot be trusted is found by reading.
"""

import os
from pathlib import Path
from zlib import crc32

import msgspec

from contracts.errors import AdsieveError

GIVEN = "given"
_BYTES = 400
_CRC_DIGITS = 8
_TAIL_BYTES = 256


class Place(msgspec.Struct, frozen=True):
    """After a whole batch: segment, bytes of it that were read, number of the last update."""

    segment: str
    offset: int
    seq: int


class NotedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log ended, and the CRC-32 of what stands just before: in a segment that was altered, another."""

    place: Place
    crc: int


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives a damaged manifest or segment: id and floor of the log, and the last number that was given."""

    log: str
    seq: int
    floor: int
    end: NotedEnd | None = None


def read_given(directory: Path, log_id: str | None = None) -> Given | None:
    """What was noted last, of the log ``log_id`` or of any; None where there is nothing that can be read."""
    try:
        data = (directory / GIVEN).read_bytes()
        body = data[_CRC_DIGITS + 1 :]
        given = msgspec.json.decode(body, type=Given) if int(data[:_CRC_DIGITS], 16) == crc32(body) else None
    except (OSError, ValueError):
        return None
    return given if given is not None and log_id in (None, given.log) else None


def note_given(directory: Path, given: Given) -> None:
    """Replace the note, in one write.

    Raises:
        AdsieveError: It cannot be written.
    """
    path = directory / GIVEN
    body = msgspec.json.encode(given).ljust(_BYTES)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(handle, b"%08x %s" % (crc32(body), body), 0)
        finally:
            os.close(handle)
    except OSError as error:
        raise AdsieveError(f"{path}: cannot be written, no update was taken: {error.strerror}") from error


def noted_end(directory: Path, place: Place) -> NotedEnd:
    """The note of an end that was just reached."""
    return NotedEnd(place=place, crc=_tail_crc(directory, place))


def trusted_end(directory: Path, log_id: str, segment: str) -> Place | None:
    """The end that was noted in a segment, which may have grown since; None where it is not as it was noted."""
    given = read_given(directory, log_id)
    end = given.end if given is not None else None
    if end is None or end.place.segment != segment or (directory / segment).stat().st_size < end.place.offset:
        return None
    return end.place if _tail_crc(directory, end.place) == end.crc else None


def _tail_crc(directory: Path, place: Place) -> int:
    start = max(0, place.offset - _TAIL_BYTES)
    with open(directory / place.segment, "rb") as file:
        file.seek(start)
        return crc32(file.read(place.offset - start))
