"""Which numbers a log of updates has given: noted before an update is written, so that none is given twice."""

import os
from pathlib import Path

import msgspec

from contracts.errors import AdsieveError

GIVEN = "given"
_BYTES = 200


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives a damaged manifest or segment: id and floor of the log, and the last number that was given."""

    log: str
    seq: int
    floor: int


def read_given(directory: Path, log_id: str | None = None) -> Given | None:
    """What was noted last, of the log ``log_id`` or of any; None where there is nothing that can be read."""
    try:
        given = msgspec.json.decode((directory / GIVEN).read_bytes(), type=Given)
    except (OSError, ValueError):
        return None
    return given if log_id in (None, given.log) else None


def note_given(directory: Path, given: Given) -> None:
    """Replace the note, in one write.

    Raises:
        AdsieveError: It cannot be written.
    """
    path = directory / GIVEN
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(handle, msgspec.json.encode(given).ljust(_BYTES), 0)
        finally:
            os.close(handle)
    except OSError as error:
        raise AdsieveError(f"{path}: cannot be written, no update was taken: {error.strerror}") from error
