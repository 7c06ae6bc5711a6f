"""Numbers of JSON as fp64, rounded to the nearest and to even, as ``float`` of the same text.

Numbers of up to 19 digits with a power of ten from -27 to 22. Where digits and power are fp64 numbers themselves one
multiplication or division rounds right (Clinger 1990, "How to Read Floating Point Numbers Accurately"); else 128 bits
of the power of five do (Lemire 2021, "Number Parsing at a Gigabyte per Second", arXiv:2101.11408, of which this is the
part that needs no second way).
"""

import numpy as np
from numba import njit

from contracts.kernels.build import U64, byte_of, double, leading_zeros, product_high, trailing_zeros, word_of
from contracts.kernels.texts import HIGHS, ONES

_LOWEST, _HIGHEST, _EXACT = -27, 22, 1 << 53
_MOST_DIGITS, _SAFE_DIGITS, _MOST_OF_POWER = 19, 15, 4
_WHOLE_TENS = np.array([10**power for power in range(9)], np.uint64)
_ZEROS, _ABOVE_NINE = ONES * U64(0x30), ONES * U64(0x80 - 10)
_PAIRS, _PAIRS_1, _PAIRS_2 = U64(0x000000FF000000FF), U64(0x000F424000000064), U64(0x0000271000000001)
_ZERO, _MINUS, _PLUS, _POINT, _POWER = (ord(sign) for sign in "0-+.e")


def _five(power: int) -> int:
    """128 bits of a power of five, its highest one first; a negative power is rounded up."""
    if power >= 0:
        return (5**power << 128) >> (5**power).bit_length()
    return 2 ** ((5**-power - 1).bit_length() + 127) // 5**-power + 1


_FIVES = [_five(power) for power in range(_LOWEST, _HIGHEST + 1)]
_UPPER = np.array([five >> 64 for five in _FIVES], np.uint64)
_LOWER = np.array([five & (1 << 64) - 1 for five in _FIVES], np.uint64)
_TENS = np.array([10.0**power for power in range(_HIGHEST + 1)])


@njit(error_model="numpy")
def _rounded(digits: np.uint64, power: int) -> float:
    """``digits * 10 ** power``, with digits that are not 0."""
    shift = leading_zeros(digits)
    scaled = digits << U64(shift)
    five = U64(power - _LOWEST)
    high, low = product_high(scaled, _UPPER[five]), scaled * _UPPER[five]
    if high & U64(0x1FF) == U64(0x1FF):  # the rest of the power may matter
        more = product_high(scaled, _LOWER[five])
        low += more
        high += U64(low < more)
    top = high >> U64(63)
    cut = top + U64(9)
    mantissa = high >> cut  # 54 bits
    if low <= U64(1) and power >= -4 and mantissa & U64(3) == U64(1) and mantissa << cut == high:
        mantissa &= ~U64(1)  # half way between two numbers: to the even one
    mantissa = (mantissa + (mantissa & U64(1))) >> U64(1)
    exponent = U64(((217706 * power) >> 16) + 63 + 1023 - shift) + top
    if mantissa >> U64(53):
        mantissa, exponent = mantissa >> U64(1), exponent + U64(1)
    return double((mantissa & ((U64(1) << U64(52)) - U64(1))) | (exponent << U64(52)))


@njit(error_model="numpy")
def _past_digits(data: int, at: int, digits: np.uint64) -> tuple[int, np.uint64]:
    """Behind the digits at a place, and what they say after those before them; they may be too many.

    Eight bytes are read together (Lemire 2021, section 6): pairs of digits, then pairs of pairs.
    """
    count = 8
    while count == 8:
        parts = word_of(data, at) ^ _ZEROS
        count = trailing_zeros(((parts + _ABOVE_NINE) | parts) & HIGHS) >> 3
        if count:
            parts <<= U64(64 - 8 * count)
            parts = parts * U64(10) + (parts >> U64(8))
            parts = (parts & _PAIRS) * _PAIRS_1 + ((parts >> U64(16)) & _PAIRS) * _PAIRS_2
            digits = digits * _WHOLE_TENS[count] + (parts >> U64(32))
            at += count
    return at, digits


@njit(error_model="numpy")
def _past_power(data: int, at: int) -> tuple[int, np.int64]:
    """Behind what follows the ``e`` before a place, and the power of ten that it is; -1 where it is none or long."""
    is_below = byte_of(data, at) == _MINUS
    first = at + (is_below or byte_of(data, at) == _PLUS)
    end, power = _past_digits(data, first, U64(0))
    if end == first or end - first > _MOST_OF_POWER:
        return -1, np.int64(0)
    return end, -np.int64(power) if is_below else np.int64(power)


@njit
def _leading_zeros(data: int, first: int) -> int:
    """Zeros before the first other digit, of a number that has one."""
    count, at = 0, first
    while byte_of(data, at) == _ZERO or byte_of(data, at) == _POINT:
        count += byte_of(data, at) == _ZERO
        at += 1
    return count


@njit(error_model="numpy")
def number_at(data: int, at: int) -> tuple[int, float]:
    """Where the number at a place ends, and what it is; -1 where there is none, or not one of those above.

    A whole number -0 is none of them: JSON has it as 0, but ``-0.0`` as a number of its own.
    """
    is_negative = byte_of(data, at) == _MINUS
    first = at + is_negative
    end, digits = _past_digits(data, first, U64(0))
    count, power = end - first, 0
    if count == 0 or (count > 1 and byte_of(data, first) == _ZERO):
        return -1, 0.0
    is_whole = True
    if byte_of(data, end) == _POINT:
        begin, is_whole = end + 1, False
        end, digits = _past_digits(data, begin, digits)
        power = begin - end
        if power == 0:
            return -1, 0.0
        count -= power
    if count > _MOST_DIGITS and count - _leading_zeros(data, first) > _MOST_DIGITS:
        return -1, 0.0
    if byte_of(data, end) | 0x20 == _POWER:
        end, more = _past_power(data, end + 1)
        power += more
        is_whole = False
    if end < 0 or (is_whole and is_negative and digits == U64(0)):
        return -1, 0.0
    if digits == U64(0):
        value = 0.0
    elif power < _LOWEST or power > _HIGHEST:
        return -1, 0.0
    elif digits > U64(_EXACT) or power < -_HIGHEST:
        value = _rounded(digits, power)
    elif power < 0:
        value = np.float64(digits) / _TENS[-power]
    else:
        value = np.float64(digits) * _TENS[power]
    return end, -value if is_negative else value


@njit(error_model="numpy")
def is_real(data: int, at: int) -> bool:
    """Whether the number at a place has a point or a power."""
    end, _ = _past_digits(data, at + (byte_of(data, at) == _MINUS), U64(0))
    return byte_of(data, end) == _POINT or byte_of(data, end) | 0x20 == _POWER


@njit(error_model="numpy")
def whole_at(data: int, at: int) -> tuple[int, float]:
    """As ``number_at`` of whole numbers of at most 15 digits; -1 for all others."""
    is_negative = byte_of(data, at) == _MINUS
    first = at + is_negative
    end, digits = _past_digits(data, first, U64(0))
    if (
        end == first
        or end - first > _SAFE_DIGITS
        or (byte_of(data, first) == _ZERO and (is_negative or end - first > 1))
    ):
        return -1, 0.0
    if byte_of(data, end) == _POINT or byte_of(data, end) | 0x20 == _POWER:
        return -1, 0.0
    return end, -np.float64(digits) if is_negative else np.float64(digits)
