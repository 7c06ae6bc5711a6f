"""The lines of a segment of the update log: each with a checksum, each batch whole or not there.

A line is ``CRC FLAG JSON``: the CRC-32, in hexadecimal, of what follows it; the flag ``+`` where more lines of the
same append follow and ``.`` at its last. What stands after the last whole batch was cut off by a kill or a full disk:
readers ignore it and the next writer goes on in another segment. A damaged line elsewhere is skipped and counted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from zlib import crc32

import msgspec

from indexing.update_record import Update, decode_update, encode_update

_MORE, _LAST = b"+", b"."
_CRC_DIGITS = 8
_SEQ = re.compile(rb'"seq":([0-9]{1,18})\b')
_PIECE = 4096
_MAX_LOST = 1_000_000
BODY_AT = _CRC_DIGITS + 1
JSON_AT = BODY_AT + 2  # after the flag and a space


def encode_batch(updates: Sequence[Update]) -> bytes:
    """The lines of one append."""
    return b"".join(encode_pieces(updates))


def encode_pieces(updates: Iterable[Update]) -> Iterator[bytes]:
    """The lines of one append, some thousands at once; of many updates that are made one by one little is in memory."""
    following = iter(updates)
    piece = list(islice(following, _PIECE))
    while piece:
        after = list(islice(following, _PIECE))
        ends = [_MORE] * (len(piece) - 1) + [_MORE if after else _LAST]
        bodies = (b"%s %s" % (end, encode_update(update)) for end, update in zip(ends, piece, strict=True))
        yield b"".join(b"%08x %s\n" % (crc32(body), body) for body in bodies)
        piece = after


def ends_batch(line: bytes) -> bool:
    """Whether the flag of a line says that it is the last of its batch."""
    return line[BODY_AT : BODY_AT + 1] == _LAST


def cut_seq(rest: bytes, seq: int) -> int:
    """The largest number that may have been given in what was cut off after the update ``seq``."""
    return lost_seq(rest, seq + rest.count(b"\n"))


def lost_seq(line: bytes, seq: int) -> int:
    """The number of the last update in a damaged line; two lines are one where the line's end between them is lost."""
    found = [int(digits) for digits in _SEQ.findall(line)]
    return max([seq + 1, *(one for one in found if one <= seq + _MAX_LOST)])


def read_line(line: bytes) -> Update | None:
    """The update of one line, without the line's end; None where it is damaged."""
    update = _read_exactly(line)
    return update if update is not None else _read_exactly(line[:-1])  # where its end is damaged


def _read_exactly(line: bytes) -> Update | None:
    try:
        if int(line[:_CRC_DIGITS], 16) != crc32(memoryview(line)[BODY_AT:]):
            return None
        return decode_update(memoryview(line)[JSON_AT:])
    except (ValueError, RecursionError, msgspec.DecodeError):  # a ValueError also where text is no UTF-8
        return None
