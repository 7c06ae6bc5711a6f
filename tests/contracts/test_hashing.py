import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ConfigError
from contracts.hashing import hash_ids, text_ids, vocabulary_ids
from contracts.schema import Table

MASK = 2**64 - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & MASK


def mix(lane: int, word: int) -> int:
    return rotate((lane + word * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0, written from its specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md)."""
    at = 0
    if len(data) >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= len(data):
            for lane in range(4):
                lanes[lane] = mix(lanes[lane], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        value = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            value = ((value ^ mix(0, lane)) * P1 + P4) & MASK
    else:
        value = P5
    value = (value + len(data)) & MASK
    while at + 8 <= len(data):
        value = (rotate(value ^ mix(0, int.from_bytes(data[at : at + 8], "little")), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        value = (rotate(value ^ (int.from_bytes(data[at : at + 4], "little") * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        value = rotate(value ^ (byte * P5 & MASK), 11) * P1 & MASK
    value = (value ^ (value >> 33)) * P2 & MASK
    value = (value ^ (value >> 29)) * P3 & MASK
    return value ^ (value >> 32)


def test_the_plain_hash_gives_the_published_values() -> None:
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc") == 0x44BC2CF5AD770999


@given(texts=st.lists(st.text(max_size=80)), buckets=st.integers(4, 2**31 - 1))
def test_hashed_ids_equal_the_formula(texts: list[str], buckets: int) -> None:
    expected = [3 + xxh64(text.encode("utf-8")) % (buckets - 3) for text in texts]
    ids = hash_ids(texts, buckets)
    assert ids.dtype == np.int32
    assert ids.tolist() == expected
    assert all(3 <= one < buckets for one in expected)


@given(values=st.lists(st.text(max_size=3), unique=True, min_size=1), others=st.lists(st.text(max_size=3)))
def test_a_vocabulary_value_never_maps_to_its_neighbour(values: list[str], others: list[str]) -> None:
    ids = text_ids(Table(dim=1, vocabulary=tuple(values)))
    assert ids(values).tolist() == list(range(3, 3 + len(values)))
    assert ids(others).tolist() == [3 + values.index(text) if text in values else 2 for text in others]


def test_texts_that_look_alike_stay_apart() -> None:
    alike = ["\u00e9", "e\u0301", "\uff21", "A", "a", "a ", "", "\u200b", "01", "1", "1.0"]
    assert len(set(alike)) == len(alike)
    assert vocabulary_ids(alike, {text: at for at, text in enumerate(alike)}).tolist() == list(range(len(alike)))
    assert len(set(hash_ids(alike, 2**31 - 1).tolist())) == len(alike)


def test_no_texts_give_no_ids() -> None:
    assert hash_ids([], 10).shape == (0,)
    assert vocabulary_ids([], {}).shape == (0,)


def test_an_unfitted_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="adsieve schema fit"):
        text_ids(Table(dim=1, max_values=5))
