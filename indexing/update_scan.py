"""Reads a segment of the update log: all whole batches from a place on, a stretch at a time, whatever its size.

Where the last whole batch ends is found first, from the end back. What stands before it never changes, so the lines up
to there can be read stretch by stretch while others append, and of a long segment little is in memory.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import msgspec

from contracts.errors import ArtifactError
from indexing.update_record import Update, decode_updates
from indexing.update_segment import BODY_AT, JSON_AT, ends_batch, lost_seq, read_line

STRETCH = 1 << 18


class SegmentScan:
    """One pass over the whole batches of a segment; iterate it to read their updates.

    Args:
        path: Of the segment.
        offset: Where to begin; a line's start.
        seq: Of the update before.

    After the pass, ``size`` is the bytes of these batches, ``seq`` the number of their last line (estimated where that
    is damaged, so that no number is given twice), and ``damaged`` the lines that were skipped, from 1 on.

    Raises:
        FileNotFoundError: The segment is gone.
        ArtifactError: It cannot be read.
    """

    def __init__(self, path: Path, offset: int = 0, seq: int = 0) -> None:
        self._path, self._offset, self._num_lines = path, offset, 0
        self.size, self.seq = 0, seq
        self.damaged: list[int] = []

    def __iter__(self) -> Iterator[list[Update]]:
        try:
            with open(self._path, "rb") as file:
                size = _whole_end(file, self._offset) - self._offset
                file.seek(self._offset)
                for lines in _stretches(file, size):
                    yield self._read(lines)
                self.size = size
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArtifactError(f"{self._path}: cannot be read: {error.strerror or error}") from error

    def finish(self) -> "SegmentScan":
        """Make the pass without keeping the updates."""
        for _ in self:
            pass
        return self

    def _read(self, lines: Sequence[bytes]) -> list[Update]:
        updates = _sound(lines)
        if updates is None:
            updates = list(self._one_by_one(lines))
        elif updates:
            self.seq = updates[-1].seq
        self._num_lines += len(lines)
        return updates

    def _one_by_one(self, lines: Sequence[bytes]) -> Iterator[Update]:
        for number, line in enumerate(lines, self._num_lines + 1):
            if not line:  # the end of a line that was whole without it
                continue
            update = read_line(line)
            if update is None:
                self.damaged.append(number)
                self.seq = lost_seq(line, self.seq)
            else:
                self.seq = update.seq
                yield update


def _sound(lines: Sequence[bytes]) -> list[Update] | None:
    """The updates of lines none of which is damaged, decoded at once; None where one may be."""
    try:
        if [int(line[: BODY_AT - 1], 16) for line in lines] != [crc32(line[BODY_AT:]) for line in lines]:
            return None
        updates = decode_updates([line[JSON_AT:] for line in lines])
    except (ValueError, RecursionError, msgspec.DecodeError):  # a ValueError also where text is no UTF-8
        return None
    return updates if len(updates) == len(lines) else None


def _stretches(file: BinaryIO, size: int) -> Iterator[list[bytes]]:
    """The lines of the next ``size`` bytes, some at a time; the last one may lack its end."""
    rest = b""
    while size:
        data = file.read(min(STRETCH, size))
        if not data:
            raise OSError("it became shorter meanwhile")
        size -= len(data)
        *lines, rest = (rest + data).split(b"\n")
        yield lines if size or not rest else [*lines, rest]


def _whole_end(file: BinaryIO, start: int) -> int:
    """Where the last whole batch ends, of what a file holds from a line's start on."""
    while True:
        size = os.fstat(file.fileno()).st_size
        try:
            return _over_empty_lines(file, _last_end(file, start, size), size)
        except EOFError:  # an append that failed was taken back meanwhile
            continue


def _last_end(file: BinaryIO, start: int, size: int) -> int:
    lines = _lines_backwards(file, start, size)
    at, line = next(lines)
    if ends_batch(line) and read_line(line) is not None:  # only its end is missing or damaged
        return size
    for at, line in lines:
        if line and (ends_batch(line) or read_line(line) is None):
            return at + len(line) + 1
    return start


def _lines_backwards(file: BinaryIO, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Each line and where it begins, the last one first; the very first is what follows the last line's end."""
    end, rest = max(start, size), b""
    while end > start:
        begin = max(start, end - STRETCH)
        file.seek(begin)
        data = file.read(end - begin)
        if len(data) < end - begin:
            raise EOFError
        at = end + len(rest)
        rest, *lines = (data + rest).split(b"\n")
        for line in reversed(lines):
            at -= len(line)
            yield at, line
            at -= 1
        end = begin
    yield start, rest


def _over_empty_lines(file: BinaryIO, at: int, size: int) -> int:
    file.seek(at)
    while at < size and file.read(1) == b"\n":
        at += 1
    return at
