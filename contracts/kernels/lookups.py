"""Notes of :func:`~contracts.kernels.queries.read_query` read by address, and names looked up in a lexicon."""

from typing import NamedTuple

import numpy as np
from numba import njit, types

from contracts.kernels.build import address, byte_of, compiled, double, read, whole_of, word_of
from contracts.kernels.queries import NAME, NAME_LENGTH, PARENT
from contracts.kernels.texts import text_hash

ENTRY_GROUP, ENTRY_START, ENTRY_LENGTH, ENTRY_ID, ENTRY_HASH = range(5)
"""Columns of a slot of a lexicon."""


class Lexicon(NamedTuple):
    """Addresses of slots and texts, and the place of the last slot."""

    slots: int
    texts: int
    last: int


class Query(NamedTuple):
    """Addresses of the body, and of what was found in it."""

    data: int
    values: int
    items: int
    numbers: int


@njit
def of_value(query, row, column):  # type: ignore[no-untyped-def]
    return whole_of(query.values, 7 * row + column)


@njit
def of_item(query, item, column):  # type: ignore[no-untyped-def]
    return whole_of(query.items, 3 * item + column)


@njit
def number_of(query, item):  # type: ignore[no-untyped-def]
    return double(word_of(query.numbers, 8 * item))


@njit
def found_id(lexicon, group, hashed, data, start, length):  # type: ignore[no-untyped-def]
    """The id of a text in a group of a lexicon; -1 where it has none."""
    signed = np.int64(hashed)
    slot = 5 * (signed & lexicon.last)
    while whole_of(lexicon.slots, slot + ENTRY_GROUP) >= 0:
        if (
            whole_of(lexicon.slots, slot + ENTRY_HASH) == signed
            and whole_of(lexicon.slots, slot + ENTRY_GROUP) == group
            and whole_of(lexicon.slots, slot + ENTRY_LENGTH) == length
        ):
            at, own = 0, whole_of(lexicon.slots, slot + ENTRY_START)
            while at < length and byte_of(lexicon.texts, own + at) == byte_of(data, start + at):
                at += 1
            if at == length:
                return whole_of(lexicon.slots, slot + ENTRY_ID)
        slot = slot + 5 if slot < 5 * lexicon.last else 0
    return -1


@njit
def id_of_name(lexicon, group, query, row):  # type: ignore[no-untyped-def]
    """The id of the name of a value."""
    start, length = of_value(query, row, NAME), of_value(query, row, NAME_LENGTH)
    return found_id(lexicon, group, text_hash(query.data, start, length), query.data, start, length)


@compiled(types.boolean, read(types.uint8), read(types.int64, 2), read(types.int64, 2), read(types.uint8))
def knows_names(data: np.ndarray, values: np.ndarray, slots: np.ndarray, texts: np.ndarray) -> bool:
    """Whether a lexicon has the names of all values; the id of a feature's name is the group of its fields' ones."""
    query, lexicon = (
        Query(address(data), address(values), 0, 0),
        Lexicon(address(slots), address(texts), len(slots) - 1),
    )
    group = 0
    for row in range(len(values)):
        is_field = values[row, PARENT] >= 0
        found = id_of_name(lexicon, group if is_field else 0, query, row)
        if found < 0:
            return False
        if not is_field:
            group = found
    return True
