"""What is written side by side is read back, aligned and bit for bit."""

import numpy as np
import pytest

from engines.packing import ALIGNMENT, Packing

ARRAYS = {
    "flat": np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32),
    "mask": np.array([True, False, True]),
    "index": np.arange(9).reshape(3, 3),
    "nothing": np.zeros((0, 4), np.float32),
    "scalar": np.array(2.5, np.float32),
}


def layout(arrays):
    return Packing({name: (array.dtype, array.shape) for name, array in arrays.items()})


def test_round_trip():
    packing = layout(ARRAYS)
    buffer = np.full(packing.nbytes, 255, np.uint8)
    packing.write(ARRAYS, buffer)
    read = packing.read(buffer)
    buffer[:] = 0
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
    assert all(part.offset % ALIGNMENT == 0 for part in packing.parts)
    ends = [part.offset + part.nbytes for part in packing.parts]
    assert all(end <= part.offset for end, part in zip(ends, packing.parts[1:], strict=False))
    assert ends[-1] <= packing.nbytes


def test_any_memory_layout_is_written():
    packing = layout(ARRAYS)
    buffer = np.zeros(packing.nbytes, np.uint8)
    packing.write(ARRAYS | {"flat": np.asfortranarray(ARRAYS["flat"])}, buffer)
    np.testing.assert_array_equal(packing.views(buffer)["flat"], ARRAYS["flat"])


@pytest.mark.parametrize("wrong", [ARRAYS["flat"].astype(np.float64), ARRAYS["flat"][:4], ARRAYS["flat"].T])
def test_another_type_or_shape_is_named(wrong):
    packing = layout(ARRAYS)
    with pytest.raises(ValueError, match=r"flat must be float32 \[5, 7\], got float"):
        packing.write(ARRAYS | {"flat": wrong}, np.zeros(packing.nbytes, np.uint8))
