"""Texts, one after another in one string: where each is, its head and hash, its id in a hashed table."""

import numpy as np
from numba import njit, types

from contracts.kernels.build import U64, address, byte_of, compiled, read, word_at, word_of, write

PADDING = 64
TAIL = b"\0" * (1 + PADDING)
"""Of the last text: its NUL, and what may be read behind it."""
HEAD = 16
"""Bytes of a head, as in ``indexing.id_keys``."""

ALL = U64(0xFFFFFFFFFFFFFFFF)
_MIX_1, _MIX_2 = U64(0xFF51AFD7ED558CCD), U64(0xC4CEB9FE1A85EC53)
_XX_1, _XX_2, _XX_3 = U64(0x9E3779B185EBCA87), U64(0xC2B2AE3D27D4EB4F), U64(0x165667B19E3779F9)
_XX_4, _XX_5 = U64(0x85EBCA77C2B2AE63), U64(0x27D4EB2F165667C5)
ONES, HIGHS = U64(0x0101010101010101), U64(0x8080808080808080)
_FACTOR_1, _FACTOR_2 = U64(0x9E3779B97F4A7C15), U64(0xC2B2AE3D27D4EB4F)  # of indexing.id_keys


@njit(inline="always")
def _masked(word: np.uint64, count: int) -> np.uint64:
    """The first ``count`` of a word's bytes, the others 0."""
    if count >= 8:
        return word
    if count <= 0:
        return U64(0)
    return word & (ALL >> U64(64 - 8 * count))


@njit(inline="always")
def head_word(data: np.ndarray, start: int, length: int, word: int) -> np.uint64:
    """A word of the head of a text of at most 16 bytes: eight of its bytes, 0xFF behind its last."""
    count = length - 8 * word
    fill = ALL << U64(8 * max(count, 0)) if count < 8 else U64(0)
    return _masked(word_at(data, start + 8 * word), count) | fill


@njit(inline="always")
def _mixed(value: np.uint64) -> np.uint64:
    """Finaliser of MurmurHash3."""
    value ^= value >> U64(33)
    value *= _MIX_1
    value ^= value >> U64(33)
    value *= _MIX_2
    return value ^ (value >> U64(33))


@njit(inline="always")
def _rotated(value: np.uint64, bits: int) -> np.uint64:
    return (value << U64(bits)) | (value >> U64(64 - bits))


@njit(inline="always")
def _xx_round(total: np.uint64, word: np.uint64) -> np.uint64:
    return _rotated(total + word * _XX_2, 31) * _XX_1


@njit(inline="always")
def _xx_merged(total: np.uint64, part: np.uint64) -> np.uint64:
    return (total ^ _xx_round(U64(0), part)) * _XX_1 + _XX_4


@njit(inline="always")
def text_hash(data: int, start: int, length: int) -> np.uint64:
    """xxHash64 of a text behind an address, with seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md)."""
    at, end = start, start + length
    if length >= 32:
        one, two, three, four = _XX_1 + _XX_2, _XX_2, U64(0), U64(0) - _XX_1
        while at + 32 <= end:
            one = _xx_round(one, word_of(data, at))
            two = _xx_round(two, word_of(data, at + 8))
            three = _xx_round(three, word_of(data, at + 16))
            four = _xx_round(four, word_of(data, at + 24))
            at += 32
        total = _rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)
        total = _xx_merged(_xx_merged(_xx_merged(_xx_merged(total, one), two), three), four)
    else:
        total = _XX_5
    total += U64(length)
    while at + 8 <= end:
        total = _rotated(total ^ _xx_round(U64(0), word_of(data, at)), 27) * _XX_1 + _XX_4
        at += 8
    if at + 4 <= end:
        total ^= (word_of(data, at) & U64(0xFFFFFFFF)) * _XX_1
        total = _rotated(total, 23) * _XX_2 + _XX_3
        at += 4
    while at < end:
        total ^= U64(byte_of(data, at)) * _XX_5
        total = _rotated(total, 11) * _XX_1
        at += 1
    total ^= total >> U64(33)
    total *= _XX_2
    total ^= total >> U64(29)
    total *= _XX_3
    return total ^ (total >> U64(32))


@njit(inline="always")
def _end_of(data: np.ndarray, at: int) -> int:
    """The place of the first NUL from ``at`` on; there is one."""
    while True:
        word = word_at(data, at)
        found = (word - ONES) & ~word & HIGHS
        if found:
            while data[at] != 0:
                at += 1
            return at
        at += 8


@compiled(types.int64, read(types.uint8), write(types.int64), write(types.int64), write(types.uint64, 2))
def split_texts(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, heads: np.ndarray) -> int:
    """Find K texts: fill ``starts`` and ``lengths`` [K], and ``heads`` [K, 2] of those of at most 16 bytes.

    A head is the text, then bytes 0xFF; what stands there for a longer text is no head of it.

    Returns:
        The length of the longest; -1 where a text holds NUL, or there is none, and what was filled is of no use.
    """
    at, end, longest = 0, len(data) - PADDING, -1
    for number in range(len(starts)):
        if at >= end:
            return -1
        stop = _end_of(data, at)
        length = stop - at
        starts[number], lengths[number], longest = at, length, max(longest, length)
        for word in range(HEAD // 8):
            heads[number, word] = head_word(data, at, length, word)
        at = stop + 1
    return longest if at == end else -1


@compiled(types.void, read(types.uint64, 2), write(types.uint64))
def head_hashes(heads: np.ndarray, hashes: np.ndarray) -> None:
    """A 64-bit hash [K] of each head [K, 2]."""
    for number in range(len(heads)):
        first, second = heads[number, 0], heads[number, 1]
        hashes[number] = _mixed(((first >> U64(32)) ^ first) * _FACTOR_1 + second * _FACTOR_2)


@compiled(types.boolean, read(types.uint64))
def may_repeat(hashes: np.ndarray) -> bool:
    """Whether two of these hashes are equal, or an odd chance says so: in 2 of 2^32 pairs."""
    size = 16
    while size < 4 * len(hashes):
        size *= 2
    seen = np.zeros(size, np.uint32)
    for number in range(len(hashes)):
        place = np.intp(hashes[number] & U64(size - 1))
        mark = np.uint32(hashes[number] >> U64(32)) | np.uint32(1)
        while seen[place]:
            if seen[place] == mark:
                return True
            place = (place + 1) & (size - 1)
        seen[place] = mark
    return False


@compiled(types.boolean, read(types.uint8), read(types.int64, 2), write(types.int32))
def hash_fields(data: np.ndarray, fields: np.ndarray, ids: np.ndarray) -> bool:
    """Ids of texts in hashed tables, as ``contracts.hashing.hash_ids``, those of F fields one after another.

    Args:
        data: All texts of all fields.
        fields: Of each the number of its texts, where its ids begin in ``ids``, rows of its table [F, 3].
        ids: A row of ids, written to.

    Returns:
        False where a text holds NUL, and so is none; the row is then of no use.
    """
    at, end, begin = 0, len(data) - PADDING, address(data)
    for field in range(len(fields)):
        place, divisor = fields[field, 1], U64(fields[field, 2] - 3)
        for number in range(fields[field, 0]):
            if at >= end:
                return False
            stop = _end_of(data, at)
            ids[place + number] = np.int32(text_hash(begin, at, stop - at) % divisor) + np.int32(3)
            at = stop + 1
    return at == end
