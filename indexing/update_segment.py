"""The lines of a segment of the update log: each with a checksum, each batch whole or not there.

A line is ``CRC FLAG JSON``: the CRC-32, in hexadecimal, of what follows it; the flag ``+`` where more lines of the
same append follow and ``.`` at its last. What stands after the last whole batch was cut off by a kill or a full disk:
readers ignore it and the next writer goes on in another segment. A damaged line elsewhere is skipped and counted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from zlib import crc32

import msgspec

from indexing.update_record import Update, decode_update, encode_update

_MORE, _LAST = b"+", b"."
_CRC_DIGITS = 8
_SEQ = re.compile(rb'"seq":([0-9]{1,18})\b')
_PIECE = 4096
_MAX_LOST = 1_000_000
_JSON_AT = _CRC_DIGITS + 3  # after the checksum, a space, the flag and a space


@dataclass(frozen=True)
class Scanned:
    """What a stretch of a segment holds.

    Args:
        updates: Of whole batches, in order.
        size: Bytes of whole batches; the rest of the stretch is unfinished.
        seq: Of the last line of these; estimated where that line is damaged, so that no number is given twice.
        damaged: Lines of the stretch that were skipped, from 1 on.
    """

    updates: list[Update]
    size: int
    seq: int
    damaged: list[int]


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


def scan(data: bytes, seq: int = 0) -> Scanned:
    """Read all whole batches of ``data``, which begins at a line's start after the update ``seq``.

    Example:
        >>> batch = encode_batch([Update(seq=1, ad_id="a", at=0, bid=1.0), Update(seq=2, ad_id="b", at=0, bid=2.0)])
        >>> whole = scan(batch + batch[:-2])
        >>> [update.ad_id for update in whole.updates], whole.size == len(batch)
        (['a', 'b'], True)
    """
    updates: list[Update] = []
    damaged: list[int] = []
    num_whole = size = at = num_damaged = 0
    whole_seq = seq
    *lines, rest = data.split(b"\n")
    for number, line in enumerate([*lines, *_whole(rest)], 1):
        at = min(at + len(line) + 1, len(data))
        if not line:  # the end of a line that was whole without it
            size = at if size == at - 1 else size
            continue
        update = read_line(line)
        if update is None:
            damaged.append(number)
            seq = _lost_seq(line, seq)
        else:
            updates.append(update)
            seq = update.seq
        if update is None or line[_CRC_DIGITS + 1 : _CRC_DIGITS + 2] == _LAST:
            num_whole, size, whole_seq, num_damaged = len(updates), at, seq, len(damaged)
    return Scanned(updates[:num_whole], size, whole_seq, damaged[:num_damaged])


def cut_seq(rest: bytes, seq: int) -> int:
    """The largest number that may have been given in what was cut off after the update ``seq``."""
    return _lost_seq(rest, seq + rest.count(b"\n"))


def _whole(rest: bytes) -> list[bytes]:
    """The last line, where its checksum tells that nothing but its end is missing or damaged."""
    return [rest] if rest and read_line(rest) is not None else []


def _lost_seq(line: bytes, seq: int) -> int:
    """The number of the last update in a damaged line; two lines are one where the line's end between them is lost."""
    found = [int(digits) for digits in _SEQ.findall(line)]
    return max([seq + 1, *(one for one in found if one <= seq + _MAX_LOST)])


def read_line(line: bytes) -> Update | None:
    """The update of one line, without the line's end; None where it is damaged."""
    update = _read_exactly(line)
    return update if update is not None else _read_exactly(line[:-1])  # where its end is damaged


def _read_exactly(line: bytes) -> Update | None:
    try:
        if int(line[:_CRC_DIGITS], 16) != crc32(memoryview(line)[_CRC_DIGITS + 1 :]):
            return None
        return decode_update(memoryview(line)[_JSON_AT:])
    except (ValueError, msgspec.DecodeError):  # a ValueError is also what text that is no UTF-8 raises
        return None
