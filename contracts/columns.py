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
    if len(array) > _FEW:
        return _through_dictionary(array.dictionary_encode(), ids_of)
    texts = few_texts(array)
    if array.null_count == 0:
        return ids_of(texts)  # type: ignore[arg-type]
    ids = np.full(len(texts), MISSING, np.int32)
    present = [position for position, text in enumerate(texts) if text is not None]
    ids[present] = ids_of([text for text in texts if text is not None])
    return ids


def _through_dictionary(array: pa.DictionaryArray, ids_of: TextIds) -> np.ndarray:
    distinct = array.dictionary
    texts = distinct_texts(distinct)
    table = np.append(ids_of(texts), np.int32(MISSING))
    nulls = null_mask(distinct)
    if nulls is not None:
        table[:-1][nulls] = MISSING
    codes = array.indices
    if codes.null_count:
        codes = codes.cast(pa.int64()).fill_null(len(texts))
    return table[codes.to_numpy(zero_copy_only=False)]


def few_texts(array: pa.Array) -> list[str | None]:
    """Texts of a short array, null as None: integers in decimal, booleans as 1 and 0."""
    type_, values = array.type, array.to_pylist()
    if _is_text(type_):
        return values
    if kinds.is_integer(type_):
        return [None if value is None else str(value) for value in values]
    if kinds.is_boolean(type_):
        return [None if value is None else "01"[value] for value in values]
    raise WrongTypeError(type_, TEXT_TYPES)


def distinct_texts(array: pa.Array) -> list[str]:
    """Texts of the distinct values of a column; a null among them becomes the empty text."""
    type_ = array.type
    if kinds.is_boolean(type_):
        array = array.cast(pa.int8())
    elif not (_is_text(type_) or kinds.is_integer(type_)):
        raise WrongTypeError(type_, TEXT_TYPES)
    if not _is_text(type_):
        array = array.cast(pa.string())
    if array.null_count:
        array = array.fill_null("")
    return array.to_pylist()


def numbers(array: pa.Array) -> np.ndarray:
    """float64 [B]; null becomes NaN (ask :func:`null_mask` to tell the two apart)."""
    type_ = array.type
    if kinds.is_dictionary(type_):
        return numbers(array.dictionary_decode())
    if kinds.is_boolean(type_):
        array = array.cast(pa.int8())
    elif not (kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_) or kinds.is_null(type_)):
        raise WrongTypeError(type_, NUMBER_TYPES)
    if array.type != pa.float64():
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
        owned = np.zeros(len(self.values) + 1, np.int64)
        np.add.at(owned, self.starts, 1)
        np.add.at(owned, self.starts + self.lengths, -1)
        return self.values.filter(pa.array(owned[:-1].cumsum() > 0))

    def encode(self, positions: np.ndarray, ids_of: TextIds) -> np.ndarray:
        """int32 [n] ids of the values at ``positions``; long lists of which few values are kept are not read whole."""
        if len(self.values) > 4 * len(positions) + _FEW:
            return value_ids(self.values.take(pa.array(positions)), ids_of)
        return value_ids(self.values, ids_of)[positions]


def lists(array: pa.Array, expected: str) -> Lists:
    """Take a list, large_list, fixed_size_list or list_view column apart; ``expected`` words the error."""
    type_ = array.type
    if kinds.is_null(type_):
        nothing = np.zeros(len(array), np.int64)
        return Lists(nothing, nothing, pa.nulls(0), np.ones(len(array), bool))
    if kinds.is_fixed_size_list(type_) or kinds.is_list_view(type_):
        array = array.cast(pa.list_(type_.value_type))
    elif kinds.is_large_list_view(type_):
        array = array.cast(pa.large_list(type_.value_type))
    elif not (kinds.is_list(type_) or kinds.is_large_list(type_)):
        raise WrongTypeError(type_, f"a list of {expected}")
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    starts, lengths, nulls = offsets[:-1], offsets[1:] - offsets[:-1], null_mask(array)
    if nulls is not None:
        lengths[nulls] = 0
    first = offsets[0]
    return Lists(starts - first, lengths, array.values.slice(first, offsets[-1] - first), nulls)


def log_error(source: str, column: str, message: str) -> LogError:
    """The LogError that names the file or dataset, where known, and the column."""
    return LogError(f"{source}: column {column!r} {message}" if source else f"column {column!r} {message}")


def _is_text(type_: pa.DataType) -> bool:
    return kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_)
