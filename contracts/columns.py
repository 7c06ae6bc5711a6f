"""Reads raw Arrow columns as what a feature means: texts, numbers, instants and lists of these.

Letters: B rows, V values of all lists together.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from contracts.errors import LogError
from contracts.hashing import TextIds
from contracts.schema import MISSING

TEXT_TYPES = "text, integers or booleans"
NUMBER_TYPES = "numbers"
INSTANT_TYPES = "timestamps with a time zone"
_MICROSECONDS = pa.timestamp("us", "UTC")
_FEW = 64  # so few values are cheaper one by one than through an Arrow kernel


class WrongTypeError(Exception):
    """An Arrow type that a feature cannot read; the caller knows the column and reports a LogError."""

    def __init__(self, type_: pa.DataType, expected: str) -> None:
        super().__init__(f"has type {type_}, expected {expected}")


def slice_column(column: pa.Array | pa.ChunkedArray, start: int, stop: int) -> pa.Array:
    """Rows ``start..stop`` of a column as one array."""
    if len(column) != stop - start:
        column = column.slice(start, stop - start)
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def null_mask(array: pa.Array) -> np.ndarray | None:
    """bool [B], true where null; None where nothing is."""
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def value_ids(array: pa.Array, ids_of: TextIds) -> np.ndarray:
    """int32 [B] ids of categorical values; null is id 1. Each distinct value is looked up once."""
    type_ = array.type
    if kinds.is_null(type_):
        return np.full(len(array), MISSING, np.int32)
    if kinds.is_dictionary(type_):
        if len(array.dictionary) > max(len(array), _FEW):
            return value_ids(array.dictionary_decode(), ids_of)
        return _through_dictionary(array, ids_of)
    if len(array) > _FEW and _is_category(type_):
        return _through_dictionary(array.dictionary_encode(), ids_of)
    return _one_by_one(array, ids_of)


def _through_dictionary(array: pa.DictionaryArray, ids_of: TextIds) -> np.ndarray:
    table = np.append(_one_by_one(array.dictionary, ids_of), np.int32(MISSING))
    codes = array.indices
    if codes.null_count:
        codes = codes.cast(pa.int64()).fill_null(len(array.dictionary))
    return table[codes.to_numpy(zero_copy_only=False)]


def _one_by_one(array: pa.Array, ids_of: TextIds) -> np.ndarray:
    ids, nulls = ids_of(texts(array)), null_mask(array)
    if nulls is not None:
        ids[nulls] = MISSING
    return ids


def texts(array: pa.Array) -> list[str]:
    """Texts of categorical values, integers in decimal, booleans as 1 and 0; null becomes the empty text."""
    if kinds.is_null(array.type):
        return [""] * len(array)
    if not _is_category(array.type):
        raise WrongTypeError(array.type, TEXT_TYPES)
    values = array.to_pylist()
    if kinds.is_integer(array.type):
        return ["" if value is None else str(value) for value in values]
    if kinds.is_boolean(array.type):
        return ["" if value is None else "01"[value] for value in values]
    return ["" if value is None else value for value in values] if array.null_count else values


def numbers(array: pa.Array, exact: pa.DataType | None = None) -> np.ndarray:
    """float64 [B]; null becomes NaN (ask :func:`null_mask` to tell the two apart). Type ``exact`` stays as it is."""
    type_ = array.type
    if kinds.is_dictionary(type_):
        return numbers(array.dictionary_decode(), exact)
    if kinds.is_boolean(type_):
        array = array.cast(pa.int8())
    elif not (kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_) or kinds.is_null(type_)):
        raise WrongTypeError(type_, NUMBER_TYPES)
    if array.type not in (pa.float64(), exact):
        array = array.cast(pa.float64(), safe=False)
    return array.to_numpy(zero_copy_only=False)


def instants(array: pa.Array) -> np.ndarray:
    """int64 [B] microseconds since 1970 UTC; what stands where a value is null means nothing."""
    type_ = array.type
    if kinds.is_null(type_):
        return np.zeros(len(array), np.int64)
    if not kinds.is_timestamp(type_) or type_.tz is None:
        raise WrongTypeError(type_, INSTANT_TYPES)
    if type_.unit != "us":
        array = array.cast(_MICROSECONDS, safe=False)
    micros = array.view(pa.int64())
    return (micros.fill_null(0) if micros.null_count else micros).to_numpy()


@dataclass(frozen=True)
class Lists:
    """A list column by parts: row b holds ``values[starts[b] : starts[b] + lengths[b]]``; a null row has length 0.

    Args:
        starts: int64 [B].
        lengths: int64 [B].
        values: V values.
        nulls: bool [B], or None where no row is null.
    """

    starts: np.ndarray
    lengths: np.ndarray
    values: pa.Array
    nulls: np.ndarray | None

    def present_values(self) -> pa.Array:
        """The values of all rows that are not null."""
        if self.nulls is None:
            return self.values
        before = np.cumsum(self.lengths) - self.lengths
        return self.values.take(pa.array(np.repeat(self.starts - before, self.lengths) + np.arange(self.lengths.sum())))

    def fill(self, out: np.ndarray, ids_of: TextIds) -> None:
        """Write the ids of the first L values of each row into ``out`` int32 [B, L], which is zeros."""
        width = out.shape[1]
        if self._are_many(int(np.minimum(self.lengths, width).sum())):
            step = np.arange(width)
            kept = step < self.lengths[:, None]
            out[kept] = self.encode((self.starts[:, None] + step)[kept], ids_of)
            return
        ids = np.append(value_ids(self.values, ids_of), np.zeros(width, np.int32))
        for place in range(width):  # behind the last value there are zeros to read
            np.multiply(ids.take(self.starts + place, mode="clip"), self.lengths > place, out=out[:, place])

    def encode(self, positions: np.ndarray, ids_of: TextIds) -> np.ndarray:
        """int32 [n] ids of the values at ``positions``; long lists of which few values are kept are not read whole."""
        if self._are_many(len(positions)):
            return value_ids(self.values.take(pa.array(positions)), ids_of)
        return value_ids(self.values, ids_of)[positions]

    def _are_many(self, num_kept: int) -> bool:
        """Whether there are so many values that those kept are better taken out first."""
        return len(self.values) > 4 * num_kept + _FEW


def lists(array: pa.Array, expected: str) -> Lists:
    """Take a list, large_list, fixed_size_list or list_view column apart; ``expected`` words the error."""
    type_ = array.type
    if kinds.is_null(type_):
        nothing = np.zeros(len(array), np.int64)
        return Lists(nothing, nothing, pa.nulls(0), np.ones(len(array), bool))
    if kinds.is_list_view(type_) or kinds.is_large_list_view(type_):
        starts = array.offsets.to_numpy().astype(np.int64)
        lengths, values = array.sizes.to_numpy().astype(np.int64), array.values
    elif kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        if kinds.is_fixed_size_list(type_):
            array = array.cast(pa.list_(type_.value_type))
        offsets = array.offsets.to_numpy().astype(np.int64)
        first, last = offsets[0], offsets[-1]
        starts, lengths = offsets[:-1] - first, offsets[1:] - offsets[:-1]
        values = array.values.slice(first, last - first)
    else:
        raise WrongTypeError(type_, f"a list of {expected}")
    nulls = null_mask(array)
    if nulls is not None:
        lengths[nulls] = 0  # what stands under a null is no value
    return Lists(starts, lengths, values, nulls)


def log_error(source: str, column: str, message: str) -> LogError:
    """The LogError that names the file or dataset, where known, and the column."""
    return LogError(f"{source}: column {column!r} {message}" if source else f"column {column!r} {message}")


def _is_category(type_: pa.DataType) -> bool:
    is_text = kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_)
    return is_text or kinds.is_integer(type_) or kinds.is_boolean(type_)
