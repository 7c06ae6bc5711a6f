"""fp16 becomes the fp32 numbers that NumPy's own conversion makes of it."""

import numpy as np
import pytest

from contracts.half import half_is_finite, half_to_float

EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = EVERY[np.isfinite(EVERY)]


@pytest.mark.parametrize("halves", [EVERY, FINITE, FINITE[::-3], FINITE[:63_000].reshape(7, 90, 100).T, FINITE[:0]])
def test_every_number_becomes_the_same_fp32_number_bit_for_bit(halves: np.ndarray) -> None:
    expected = halves.astype(np.float32)
    np.testing.assert_array_equal(half_to_float(halves).view(np.int32), expected.view(np.int32))
    out = np.full(halves.shape, np.nan, np.float32)
    assert half_to_float(halves, out) is out
    np.testing.assert_array_equal(out.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_one_number_that_is_not_finite_changes_no_other(value: float) -> None:
    halves = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float16)
    halves[13, 5] = value
    np.testing.assert_array_equal(half_to_float(halves), halves.astype(np.float32))


def test_rows_of_an_array_of_other_rows_are_converted_in_place() -> None:
    halves = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float16)
    out = np.zeros((100, 16), np.float32)
    half_to_float(halves, out[::2, ::2])
    np.testing.assert_array_equal(out[::2, ::2], halves.astype(np.float32))
    assert not out[1::2].any()
    assert not out[:, 1::2].any()


def test_finite_numbers_are_those_that_numpy_calls_finite() -> None:
    np.testing.assert_array_equal(half_is_finite(EVERY), np.isfinite(EVERY))
