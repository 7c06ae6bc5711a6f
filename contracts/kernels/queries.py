"""The features of a request where they stand in a JSON body: found and noted down without making objects of them.

Only what is plainly right is read: texts of printable ASCII without escapes, numbers whose rounding is certain, true,
false, null, lists of these, and objects of all that, such as histories. Of all else :func:`read_query` says that it
does not know, and whoever calls decodes it in another way.
"""

import numpy as np
from numba import njit, types

from contracts.kernels.bodies import NO_ROOM, UNKNOWN, past_space, text_end
from contracts.kernels.build import U64, address, byte_of, compiled, read, word_of, write
from contracts.kernels.numbers import is_real, number_at, whole_at

NULL, BOOLEAN, TEXT, WHOLE, REAL = 1, 2, 4, 8, 16
"""Kinds of values; those of a list are the sum of what is in it."""
SCALAR, LIST, OBJECT = 0, 1, 2
PARENT, NAME, NAME_LENGTH, SHAPE, KINDS, FIRST, COUNT = range(7)
"""Columns of what is noted of a value."""
START, LENGTH, KIND = range(3)
"""Columns of what is noted of a single item."""

_QUOTE, _COMMA, _COLON = ord('"'), ord(","), ord(":")
_OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT = ord("["), ord("]"), ord("{"), ord("}")
_NULL, _TRUE, _FALS = (U64(int.from_bytes(word, "little")) for word in (b"null", b"true", b"fals"))
_FOUR, _E = U64((1 << 32) - 1), ord("e")


@njit
def _item_at(data: int, at: int) -> tuple[int, int, float]:
    """Behind the text, number or word at a place, its kind, and what it says as a number; -1 where it is not plain."""
    if byte_of(data, at) == _QUOTE:
        end = text_end(data, at + 1)
        return (UNKNOWN if end == UNKNOWN else end + 1), TEXT, 0.0
    word = word_of(data, at) & _FOUR
    if word == _NULL:
        return at + 4, NULL, 0.0
    if word == _TRUE:
        return at + 4, BOOLEAN, 1.0
    if word == _FALS and byte_of(data, at + 4) == _E:
        return at + 5, BOOLEAN, 0.0
    end, number = whole_at(data, at)
    if end != UNKNOWN:
        return end, WHOLE, number
    end, number = number_at(data, at)
    return end, (REAL if is_real(data, at) else WHOLE), number


@njit
def _read_list(data, at, items, numbers, number):  # type: ignore[no-untyped-def]
    """Behind a list whose bracket is at ``at``, the number of items noted by then, and the kinds that are in it."""
    kinds = 0
    at = past_space(data, at + 1)
    if byte_of(data, at) == _CLOSE:
        return at + 1, number, kinds
    while number < len(items):
        end, kind, numbers[number] = _item_at(data, at)
        if end == UNKNOWN:
            return UNKNOWN, number, kinds
        is_text = kind == TEXT
        items[number, START], items[number, LENGTH], items[number, KIND] = at + is_text, end - at - 2 * is_text, kind
        kinds |= kind
        number += 1
        at = past_space(data, end)
        if byte_of(data, at) == _CLOSE:
            return at + 1, number, kinds
        if byte_of(data, at) != _COMMA:
            return UNKNOWN, number, kinds
        at = past_space(data, at + 1)
    return NO_ROOM, number, kinds


_READ = (
    *(read(types.uint8), types.int64),
    *(write(types.int64, 2), write(types.int64, 2), write(types.float64), write(types.int64)),
)


@compiled(types.int64, *_READ)
def read_query(
    body: np.ndarray, at: int, values: np.ndarray, items: np.ndarray, numbers: np.ndarray, found: np.ndarray
) -> int:
    """Find the features in a body.

    Args:
        body: It, and ``PADDING`` NULs.
        at: Behind the name of the field.
        values: Room for values, each followed by those that are in it: the row of the object that it is in, -1 for
            none; where its name begins and how long that is; shape; kinds; its first item, or the row of its first
            value; how many there are [V, 7].
        items: Room for texts, numbers and words: where each begins, its length, its kind [K, 3].
        numbers: Room for what the numbers say, 1 and 0 for true and false [K].
        found: Written to: values, items, length of the longest list, where the object begins [4].

    Returns:
        Where the object ends. -1 where it is not plain, or no JSON, -2 where it has more than there is room for; what
        was filled is then of no use.
    """
    data = address(body)
    at = past_space(data, at)
    if byte_of(data, at) != _COLON:
        return UNKNOWN
    at = past_space(data, at + 1)
    if byte_of(data, at) != _OPEN_OBJECT:
        return UNKNOWN
    begin, row, number, parent, longest = at, 0, 0, -1, 0
    at = past_space(data, at + 1)
    is_empty = byte_of(data, at) == _CLOSE_OBJECT
    while not is_empty:
        if byte_of(data, at) != _QUOTE:
            return UNKNOWN
        if row == len(values) or number == len(items):
            return NO_ROOM
        name = at + 1
        end = text_end(data, name)
        if end == UNKNOWN:
            return UNKNOWN
        value = row
        values[value, PARENT], values[value, NAME], values[value, NAME_LENGTH] = parent, name, end - name
        values[value, FIRST] = number
        at = past_space(data, end + 1)
        if byte_of(data, at) != _COLON:
            return UNKNOWN
        at = past_space(data, at + 1)
        row += 1
        if byte_of(data, at) == _OPEN_OBJECT:
            if parent >= 0:
                return UNKNOWN
            parent = row - 1
            values[value, SHAPE], values[value, KINDS], values[value, FIRST] = OBJECT, 0, row
            at = past_space(data, at + 1)
            if byte_of(data, at) != _CLOSE_OBJECT:
                continue
        elif byte_of(data, at) == _OPEN:
            at, end, kinds = _read_list(data, at, items, numbers, number)
            if at < 0:
                return at
            values[value, SHAPE], values[value, KINDS], values[value, COUNT] = LIST, kinds, end - number
            longest, number = max(longest, end - number), end
        else:
            end, kind, numbers[number] = _item_at(data, at)
            if end == UNKNOWN:
                return UNKNOWN
            is_text = kind == TEXT
            items[number, START], items[number, LENGTH], items[number, KIND] = (
                at + is_text,
                end - at - 2 * is_text,
                kind,
            )
            values[value, SHAPE], values[value, KINDS], values[value, COUNT] = SCALAR, kind, 1
            at, number = end, number + 1
        at = past_space(data, at)
        if parent >= 0 and byte_of(data, at) == _CLOSE_OBJECT:
            values[parent, COUNT] = row - parent - 1
            parent = -1
            at = past_space(data, at + 1)
        if parent < 0 and byte_of(data, at) == _CLOSE_OBJECT:
            break
        if byte_of(data, at) != _COMMA:
            return UNKNOWN
        at = past_space(data, at + 1)
    found[0], found[1], found[2], found[3] = row, number, longest, begin
    return at + 1
