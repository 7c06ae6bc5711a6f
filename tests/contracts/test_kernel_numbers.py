"""Numbers that a kernel reads from JSON are those that ``float`` makes of the same text, to the bit."""

import struct
from types import ModuleType

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

NUMBERS = 2
SIGNED = st.sampled_from(["", "-"])
WRITTEN = st.builds(
    "{}{}{}{}".format,
    SIGNED,
    st.integers(0, 10**20) | st.integers(0, 999),
    st.just("") | st.from_regex(r"\.[0-9]{1,20}", fullmatch=True),
    st.just("") | st.from_regex(r"[eE][+-]?[0-9]{1,3}", fullmatch=True),
)
HALF_WAY = st.builds(
    lambda upper, tens: f"{2 * (upper | 1 << 52) + 1}e{tens}", st.integers(0, 2**52), st.integers(0, 3)
)


def number(kernels: ModuleType, text: str) -> float | None:
    """What the kernel makes of one number; None where it leaves it to others."""
    data = np.frombuffer(f':{{"bids":[{text}]}}'.encode() + kernels.TAIL, np.uint8)
    ids, heads, numbers = np.empty(1, np.int64), np.empty((1, 2), np.uint64), np.empty(1)
    columns, found = np.empty((1, 5), np.int64), np.empty(5, np.int64)
    end = kernels.read_candidates(data, 0, ids, ids.copy(), heads, numbers, columns, found)
    return float(numbers[0]) if end > 0 and columns[0, 0] == NUMBERS else None


def bits(value: float) -> bytes:
    return struct.pack("d", value)


@settings(max_examples=200, deadline=None)
@given(WRITTEN | HALF_WAY | st.floats(allow_nan=False, allow_infinity=False).map(repr))
@example("-0")
@example("-0.0")
@example("0e-9999")
@example("9007199254740993")
@example("9007199254740993e-27")
@example("0." + "0" * 25)
@example("0." + "0" * 9 + "1234567890123456789")
def test_what_is_read_is_the_nearest_number(kernels: ModuleType, text: str) -> None:
    found = number(kernels, text)
    if found is not None:
        assert bits(found) == bits(float(text)) == bits(float(msgspec.json.decode(text)))


@settings(max_examples=200, deadline=None)
@given(st.text("0123456789.eE+-", min_size=1, max_size=12))
def test_what_is_no_number_of_json_is_not_read(kernels: ModuleType, text: str) -> None:
    found = number(kernels, text)
    if found is not None:
        assert bits(found) == bits(float(msgspec.json.decode(text)))


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-6, 1e15), SIGNED)
def test_what_python_writes_of_usual_numbers_is_read(kernels: ModuleType, value: float, sign: str) -> None:
    assert number(kernels, f"{sign}{value!r}") == float(f"{sign}{value!r}")


@pytest.mark.parametrize(
    "text", ["-0", "00", "01", "1.", "1.e5", ".5", "1e", "1e+", "-", "+1", "nan", "1e400", "0.1.2"]
)
def test_what_is_left_to_others(kernels: ModuleType, text: str) -> None:
    assert number(kernels, text) is None
