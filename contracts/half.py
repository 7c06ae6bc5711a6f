"""Work on fp16 with whole arrays of integers, since NumPy takes such numbers one at a time on most machines."""

import numpy as np

_SIGN_EXPONENT_FRACTION = np.int32(-0x7000_2000)
"""The bits of an fp32 number that an fp16 number fills: its sign, and 15 bits from the 13th on (0x8fffe000)."""
_REBIAS = np.float32(2.0**112)
"""fp32 counts exponents from -127, fp16 from -15."""
_INFINITE = np.int16(0x7C00)
"""The exponent of infinity and NaN, the largest there is."""


def half_to_float(halves: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Convert fp16 to fp32, exactly; as ``halves.astype(np.float32)``, but with whole arrays of integers.

    Exponent and fraction are moved to where fp32 has them, and the product with a power of two sets the exponent right,
    that of zero and of fp16's subnormal numbers too.

    Args:
        halves: float16, of any shape.
        out: Where to write, float32 of that shape; None makes an array.

    Returns:
        ``out``, or the new array.

    Example:
        >>> half_to_float(np.array([[1.5, -0.0, 6e-8]], np.float16)).tolist()
        [[1.5, -0.0, 5.960464477539063e-08]]
    """
    bits = halves.view(np.int16)
    if out is None:
        out = np.empty(halves.shape, np.float32)
    if not half_is_finite(halves).all():
        np.copyto(out, halves)
        return out
    wide = out.view(np.int32)
    np.copyto(wide, bits)  # carries the sign along, to the left of where it will be
    wide <<= 13
    wide &= _SIGN_EXPONENT_FRACTION
    out *= _REBIAS
    return out


def half_is_finite(halves: np.ndarray) -> np.ndarray:
    """As ``np.isfinite`` of fp16, which takes the numbers one at a time too.

    Example:
        >>> half_is_finite(np.array([1.5, np.inf, np.nan], np.float16)).tolist()
        [True, False, False]
    """
    return (halves.view(np.int16) & _INFINITE) != _INFINITE


def as_float(numbers: np.ndarray) -> np.ndarray:
    """Numbers of any type as fp32, exactly those of fp16; without a copy where they are fp32."""
    return half_to_float(numbers) if numbers.dtype == np.float16 else numbers.astype(np.float32, copy=False)


Halves = tuple[np.ndarray, np.ndarray]
"""Vectors of an index as the bits of fp16, uint16 [A, H * D], and its biases, fp32 [A, H]."""


def half_bits(vectors: np.ndarray, bias: np.ndarray) -> Halves | None:
    """What a kernel reads of vectors [A, H * D] and biases [A, H]; None where they are not of the types it takes."""
    if vectors.dtype != np.float16 or bias.dtype != np.float32:
        return None
    if not (vectors.flags.c_contiguous and bias.flags.c_contiguous):
        return None
    return np.asarray(vectors).view(np.uint16), np.asarray(bias)
