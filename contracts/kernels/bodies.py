"""The candidates of a request where they stand in a JSON body: texts and numbers found without making objects of them.

Only what is plainly right is read: texts of printable ASCII without escapes, numbers whose rounding is certain, null.
Of all else these functions say that they do not know, and whoever calls reads it in another way. Reading ends at the
first NUL: ``PADDING`` bytes of it follow the body, and no loop passes one.
"""

import numpy as np
from numba import njit, types

from contracts.kernels.build import U64, address, byte_of, compiled, read, trailing_zeros, word_of, write
from contracts.kernels.numbers import number_at
from contracts.kernels.texts import HEAD, HIGHS, ONES, head_word

UNKNOWN, NO_ROOM = -1, -2
"""Instead of a place: this is not plain, or there is more than can be written down."""
OTHER, TEXTS, NUMBERS = 0, 1, 2
"""What a column is: one that was passed over, one of texts that were found, one of numbers that were read."""

_QUOTE, _ESCAPE, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT = ord("["), ord("]"), ord("{"), ord("}")
_QUOTES, _ESCAPES, _SPACES = ONES * U64(_QUOTE), ONES * U64(_ESCAPE), ONES * U64(0x20)
_NULL = U64(int.from_bytes(b"null", "little"))
_IDS = U64(int.from_bytes(b'ids"', "little"))
_BIDS = U64(int.from_bytes(b'bids"', "little"))
_FOUR, _FIVE = U64((1 << 32) - 1), U64((1 << 40) - 1)
_DEEPEST = 32
"""Lists in lists of a column that is passed over."""


@njit
def past_space(data: int, at: int) -> int:
    byte = byte_of(data, at)
    while byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09:
        at += 1
        byte = byte_of(data, at)
    return at


@njit
def _ends(word: np.uint64) -> np.uint64:
    """Not 0 where a byte is no part of a plain text; the lowest bit that is set is then the highest of the first such.

    What is set above it may be the borrow of a subtraction.
    """
    quotes, escapes = word ^ _QUOTES, word ^ _ESCAPES
    return (((quotes - ONES) & ~quotes) | ((escapes - ONES) & ~escapes) | ((word - _SPACES) & ~word) | word) & HIGHS


@njit
def text_end(data: int, start: int) -> int:
    """The quote that ends a plain text; eight bytes are looked at together."""
    at = start
    ends = _ends(word_of(data, at))
    while ends == U64(0):
        at += 8
        ends = _ends(word_of(data, at))
    end = at + (trailing_zeros(ends) >> 3)
    return end if byte_of(data, end) == _QUOTE else UNKNOWN


@njit
def _read_texts(data, at, whole, starts, lengths, heads, found):  # type: ignore[no-untyped-def]
    """Behind a list of texts whose bracket is at ``at``; ``found`` gets their number and the longest one's length."""
    number, longest = 0, 0
    at = past_space(data, at + 1)
    if byte_of(data, at) == _CLOSE:
        found[0], found[1] = 0, 0
        return at + 1
    while byte_of(data, at) == _QUOTE:
        if number == len(starts):
            return NO_ROOM
        start = at + 1
        end = text_end(data, start)
        if end == UNKNOWN:
            return UNKNOWN
        length = end - start
        starts[number], lengths[number], longest = start, length, max(longest, length)
        for word in range(HEAD // 8):
            heads[number, word] = head_word(whole, start, length, word)
        number += 1
        at = past_space(data, end + 1)
        if byte_of(data, at) == _CLOSE:
            found[0], found[1] = number, longest
            return at + 1
        if byte_of(data, at) != _COMMA:
            return UNKNOWN
        at = past_space(data, at + 1)
    return UNKNOWN


@njit
def _read_numbers(data, at, numbers, found):  # type: ignore[no-untyped-def]
    """Behind a list of numbers and nulls whose bracket is at ``at``; ``found`` gets how many there are."""
    number = 0
    at = past_space(data, at + 1)
    if byte_of(data, at) == _CLOSE:
        found[2] = 0
        return at + 1
    while True:
        if number == len(numbers):
            return NO_ROOM
        if word_of(data, at) & _FOUR == _NULL:
            numbers[number] = np.nan
            at += 4
        else:
            at, numbers[number] = number_at(data, at)
            if at == UNKNOWN:
                return UNKNOWN
        number += 1
        at = past_space(data, at)
        if byte_of(data, at) == _CLOSE:
            found[2] = number
            return at + 1
        if byte_of(data, at) != _COMMA:
            return UNKNOWN
        at = past_space(data, at + 1)


@njit
def _past_list(data, at):  # type: ignore[no-untyped-def]
    """Behind a list whose bracket is at ``at``, whatever it holds; whether that is JSON is for others to say."""
    depth = 0
    while byte_of(data, at):
        if byte_of(data, at) == _QUOTE:
            at += 1
            while byte_of(data, at) != _QUOTE:
                if byte_of(data, at) == _ESCAPE:
                    at += 1
                if byte_of(data, at) == 0:
                    return UNKNOWN
                at += 1
        elif byte_of(data, at) == _OPEN:
            depth += 1
            if depth > _DEEPEST:
                return UNKNOWN
        elif byte_of(data, at) == _CLOSE:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return UNKNOWN


@njit
def _read_columns(data, at, whole, starts, lengths, heads, numbers, columns, found):  # type: ignore[no-untyped-def]
    """Behind an object of lists whose brace is at ``at``."""
    count = 0
    at = past_space(data, at + 1)
    while byte_of(data, at) == _QUOTE and count < len(columns):
        name = at + 1
        name_end = text_end(data, name)
        if name_end == UNKNOWN:
            return UNKNOWN
        at = past_space(data, name_end + 1)
        if byte_of(data, at) != _COLON:
            return UNKNOWN
        start = past_space(data, at + 1)
        if byte_of(data, start) != _OPEN:
            return UNKNOWN
        kind, at = OTHER, UNKNOWN
        if word_of(data, name) & _FOUR == _IDS:
            kind, at = TEXTS, _read_texts(data, start, whole, starts, lengths, heads, found)
        elif word_of(data, name) & _FIVE == _BIDS:
            kind, at = NUMBERS, _read_numbers(data, start, numbers, found)
        if at == NO_ROOM:
            return NO_ROOM
        if at == UNKNOWN:
            kind, at = OTHER, _past_list(data, start)
        if at == UNKNOWN:
            return UNKNOWN
        columns[count, 0], columns[count, 1], columns[count, 2] = kind, name, name_end
        columns[count, 3], columns[count, 4] = start, at
        count += 1
        at = past_space(data, at)
        if byte_of(data, at) == _CLOSE_OBJECT:
            found[3] = count
            return at + 1
        if byte_of(data, at) != _COMMA:
            return UNKNOWN
        at = past_space(data, at + 1)
    return UNKNOWN


_READ = (
    *(read(types.uint8), types.int64),
    *(write(types.int64), write(types.int64), write(types.uint64, 2), write(types.float64)),
    *(write(types.int64, 2), write(types.int64)),
)


@compiled(types.int64, *_READ)
def read_candidates(
    body: np.ndarray,
    at: int,
    starts: np.ndarray,
    lengths: np.ndarray,
    heads: np.ndarray,
    numbers: np.ndarray,
    columns: np.ndarray,
    found: np.ndarray,
) -> int:
    """Find the candidates in a body: a list of ids, or an object of columns of which ``ids`` and ``bids`` are read.

    Args:
        body: It, and ``PADDING`` NULs.
        at: Behind the name of the field.
        starts, lengths, heads: Room for K ids, as of ``split_texts``.
        numbers: Room for K bids; NaN for null.
        columns: Room for columns: kind, where the name begins and ends, where the value begins and ends [M, 5].
        found: Written to: ids, length of the longest, bids, columns (-1 where there is one list of ids), and where the
            value begins [5].

    Returns:
        Where the value ends. -1 where it is not plain, or no JSON, -2 where it has more than K ids or bids; what was
        filled is then of no use.
    """
    data = address(body)
    at = past_space(data, at)
    if byte_of(data, at) != _COLON:
        return UNKNOWN
    at = past_space(data, at + 1)
    found[:] = 0
    found[4] = at
    if byte_of(data, at) == _OPEN:
        found[3] = -1
        return _read_texts(data, at, body, starts, lengths, heads, found)
    if byte_of(data, at) == _OPEN_OBJECT:
        return _read_columns(data, at, body, starts, lengths, heads, numbers, columns, found)
    return UNKNOWN


@compiled(types.int64, read(types.uint8), read(types.int64), read(types.int64), read(types.int64), write(types.uint8))
def join_texts(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, places: np.ndarray, joined: np.ndarray
) -> int:
    """Copy the texts at K places [K], each followed by NUL; returns their bytes, -1 where there is no room."""
    end = 0
    for place in places:
        start, length = starts[place], lengths[place]
        if end + length + 1 > len(joined):
            return -1
        for at in range(length):
            joined[end + at] = data[start + at]
        joined[end + length] = 0
        end += length + 1
    return end
