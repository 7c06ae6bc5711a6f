"""Rows of ids in an id table (``indexing.id_table``), and ids as an answer has them."""

import numpy as np
from numba import njit, types

from contracts.kernels.build import U64, compiled, prefetch, put_word, read, trailing_zeros, word_at, write
from contracts.kernels.texts import HEAD

_LANES, _LANE_HIGHS = U64(0x0001000100010001), U64(0x8000800080008000)


@njit(inline="always")
def _slot_of(tags: np.ndarray, bucket: int, tag: np.uint64) -> int:
    """The first slot of a bucket that holds a tag, -1 for none: four tags at once, without a branch."""
    wanted, slot = tag * _LANES, -1
    for part in range(3, -1, -1):
        differing = tags[bucket, part] ^ wanted
        found = (differing - _LANES) & ~differing & _LANE_HIGHS  # the lowest bit is that of the first
        slot = 4 * part + (trailing_zeros(found) >> 4) if found else slot
    return slot


@njit
def _is_text(data: np.ndarray, start: int, length: int, own: np.ndarray, own_start: int, own_end: int) -> bool:
    if own_end - own_start != length:
        return False
    for at in range(length):  # noqa: SIM110 - Numba takes no generator
        if data[start + at] != own[own_start + at]:
            return False
    return True


@njit
def _found(hashed, head, start, length, data, num_buckets, tags, rows, own_heads, offsets, own_data):  # type: ignore[no-untyped-def]
    """The row of one id, whatever slot it is in."""
    bucket = np.intp(((hashed >> U64(32)) * U64(num_buckets)) >> U64(32))
    tag = max(hashed & U64(0xFFFF), U64(1))
    while True:
        for slot in range(16):
            here = (tags[bucket, slot // 4] >> U64(16 * (slot % 4))) & U64(0xFFFF)
            if here == tag:
                row = rows[16 * bucket + slot]
                alike = own_heads[row, 0] == head[0] and own_heads[row, 1] == head[1]
                if alike and length > HEAD:
                    alike = _is_text(data, start, length, own_data, offsets[row], offsets[row + 1])
                if alike:
                    return row
        if tags[bucket, 3] >> U64(48) == U64(0):  # the bucket was never full: no id of it went on
            return np.int32(-1)
        bucket += 1


_LOOKUP = (
    *(read(types.uint64), read(types.uint64, 2), read(types.int64), read(types.int64), read(types.uint8)),
    *(types.int64, read(types.uint64, 2), read(types.int32), read(types.uint64, 2)),
    *(read(types.int64), read(types.uint8), write(types.int32)),
)


@compiled(types.void, *_LOOKUP)
def find_rows(
    hashes: np.ndarray,
    heads: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    data: np.ndarray,
    num_buckets: int,
    tags: np.ndarray,
    rows: np.ndarray,
    own_heads: np.ndarray,
    offsets: np.ndarray,
    own_data: np.ndarray,
    found: np.ndarray,
) -> None:
    """Rows of K ids in an id table, -1 for none, into ``found`` [K].

    One pass for each read from memory, so that the reads of many ids are under way at once: the home buckets' tags and
    rows, the head of the row in the first slot whose tag fits. Whoever fits no head there looks through all slots.

    Args:
        hashes, heads, starts, lengths, data: The ids asked, as in ``indexing.id_keys.Keys``.
        num_buckets: Home buckets.
        tags: [buckets, 4], four tags of 16 bits in a word.
        rows: [buckets * 16].
        own_heads, offsets, own_data: Of the table's ids.
    """
    for number in range(len(hashes)):
        bucket = np.intp(((hashes[number] >> U64(32)) * U64(num_buckets)) >> U64(32))
        prefetch(tags, 4 * bucket)
        prefetch(rows, 16 * bucket)
    for number in range(len(hashes)):
        bucket = np.intp(((hashes[number] >> U64(32)) * U64(num_buckets)) >> U64(32))
        tag = max(hashes[number] & U64(0xFFFF), U64(1))
        slot = _slot_of(tags, bucket, tag)
        found[number] = -1 if slot < 0 else rows[16 * bucket + slot]
        prefetch(own_heads, 2 * max(found[number], 0))
    for number in range(len(hashes)):
        row = found[number]
        if row >= 0 and own_heads[row, 0] == heads[number, 0] and own_heads[row, 1] == heads[number, 1]:
            length = lengths[number]
            if length <= HEAD or _is_text(data, starts[number], length, own_data, offsets[row], offsets[row + 1]):
                continue
        found[number] = _found(
            hashes[number], heads[number], starts[number], lengths[number], data,
            num_buckets, tags, rows, own_heads, offsets, own_data,
        )  # fmt: skip


_OPEN, _CLOSE, _QUOTE, _COMMA = ord("["), ord("]"), ord('"'), ord(",")


@compiled(types.int64, read(types.uint8), read(types.int64), read(types.int64), read(types.int64), write(types.uint8))
def list_texts(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, places: np.ndarray, listed: np.ndarray
) -> int:
    """Write the texts at K places [K] as a list in JSON, which they need no escapes for, and return how many bytes.

    Args:
        data, starts, lengths: As of ``split_texts``.
        places: Which.
        listed: Room for all, three bytes more for each, and 10; what stands behind the end is of no use.
    """
    end = 1
    listed[0] = _OPEN
    for place in places:
        start, length = starts[place], lengths[place]
        listed[end] = _QUOTE
        for at in range(0, length, 8):
            put_word(listed, end + 1 + at, word_at(data, start + at))
        end += length + 3
        listed[end - 2], listed[end - 1] = _QUOTE, _COMMA
    if len(places) == 0:
        end += 1
    listed[end - 1] = _CLOSE
    return end
