import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from contracts import columns as raw
from contracts.hashing import hash_ids, text_ids
from contracts.schema import Table

BUCKETS = 1_000_003
HASHED = text_ids(Table(dim=1, buckets=BUCKETS))
WORDS = ["DE", None, "Köln", "", "中国", "DE", "🙂"]


def expected_ids(texts: list[str | None]) -> list[int]:
    return [1 if text is None else int(hash_ids([text], BUCKETS)[0]) for text in texts]


def repeated(array: pa.Array, times: int) -> pa.Array:
    return pa.concat_arrays([array] * times)


# Few values go one by one, many through a dictionary; both must give the same.
@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize(
    "array",
    [
        pa.array(WORDS, pa.string()),
        pa.array(WORDS, pa.large_string()),
        pa.array(WORDS, pa.string_view()),
        pa.array(WORDS, pa.string()).dictionary_encode(),
        pa.array(WORDS, pa.large_string()).dictionary_encode(),
        pa.array(["x", *WORDS, "y"]).slice(1, len(WORDS)),
        pa.array(["x", *WORDS, "y"]).dictionary_encode().slice(1, len(WORDS)),
        pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 2, 3, 4, 0, 5], pa.uint8()), pa.array(["DE", None, *WORDS[2:5], "🙂"])
        ),
        pa.DictionaryArray.from_arrays(
            pa.array([0, None, 2, 3, 4, 1, 5], pa.int8()),
            pa.array(["DE", "DE", "Köln", "", "中国", "🙂", *map(str, range(90))]),
        ),
    ],
    ids=[
        "string",
        "large_string",
        "string_view",
        "dictionary",
        "large_dictionary",
        "slice",
        "dictionary_slice",
        "null_in_dictionary",
        "large_and_repeated_dictionary",
    ],
)
def test_texts_of_any_arrow_type_have_the_same_ids(array: pa.Array, times: int) -> None:
    assert raw.value_ids(repeated(array, times), HASHED).tolist() == expected_ids(WORDS) * times


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("type_", [pa.int8(), pa.int64(), pa.uint16(), pa.dictionary(pa.int32(), pa.int64())])
def test_integers_hash_as_their_decimal_text(type_: pa.DataType, times: int) -> None:
    array = repeated(
        pa.array([0, 7, None, 120], pa.int64()).cast(type_ if not pa.types.is_dictionary(type_) else pa.int64()), times
    )
    array = array.dictionary_encode() if pa.types.is_dictionary(type_) else array
    assert raw.value_ids(array, HASHED).tolist() == expected_ids(["0", "7", None, "120"]) * times


@pytest.mark.parametrize("times", [1, 40])
def test_negative_and_unsigned_integers_and_booleans(times: int) -> None:
    assert raw.value_ids(pa.array([-124] * times), HASHED).tolist() == expected_ids(["-124"]) * times
    big = pa.array([2**64 - 1] * times, pa.uint64())
    assert raw.value_ids(big, HASHED).tolist() == expected_ids([str(2**64 - 1)]) * times
    flags = pa.array([True, False, None] * times)
    assert raw.value_ids(flags, HASHED).tolist() == expected_ids(["1", "0", None]) * times


def test_columns_of_nulls_are_missing() -> None:
    assert raw.value_ids(pa.nulls(3), HASHED).tolist() == [1, 1, 1]
    assert raw.value_ids(pa.nulls(100, pa.string()), HASHED).tolist() == [1] * 100
    assert raw.value_ids(pa.nulls(3).dictionary_encode(), HASHED).tolist() == [1, 1, 1]
    assert raw.value_ids(pa.array([], pa.string()), HASHED).tolist() == []


@pytest.mark.parametrize("length", [3, 100])
@pytest.mark.parametrize("values", [1.5, b"x", dt.date(2024, 1, 1), {"a": 1}])
def test_other_types_are_no_category(values: Any, length: int) -> None:
    with pytest.raises(raw.WrongTypeError, match="expected text, integers or booleans"):
        raw.value_ids(pa.array([values] * length), HASHED)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3], pa.int32()),
        pa.array([1, None, 3], pa.float16()),
        pa.array([1, None, 3], pa.float64()),
        pa.array([9, 1, None, 3], pa.float64()).slice(1),
        pa.array([1, None, 3], pa.decimal128(5, 2)),
        pa.array([1, None, 3], pa.float32()).dictionary_encode(),
    ],
)
def test_numbers_of_any_arrow_type_are_float64(array: pa.Array) -> None:
    got = raw.numbers(array)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(raw.null_mask(array), [False, True, False])


def test_booleans_and_large_integers_are_numbers_and_texts_are_not() -> None:
    assert raw.numbers(pa.array([True, False])).tolist() == [1.0, 0.0]
    assert raw.numbers(pa.array([2**60 + 1])).tolist() == [float(2**60)]
    with pytest.raises(raw.WrongTypeError, match="has type string, expected numbers"):
        raw.numbers(pa.array(["1.5"]))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+02:00"])
def test_instants_of_any_unit_and_zone_are_utc_microseconds(unit: str, zone: str) -> None:
    instant = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    array = pa.array([instant, None], pa.timestamp(unit, zone))
    assert raw.instants(array)[0] == int(instant.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    "array",
    [pa.array([dt.datetime(2024, 1, 1)]), pa.array([1]), pa.array(["2024-01-01"]), pa.array([dt.date(2024, 1, 1)])],
)
def test_a_time_without_a_zone_is_refused(array: pa.Array) -> None:
    with pytest.raises(raw.WrongTypeError, match="expected timestamps with a time zone"):
        raw.instants(array)


ROWS = [["a", "b"], None, [], ["c", None, "a"]]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(ROWS, pa.list_(pa.string())),
        pa.array(ROWS, pa.large_list(pa.large_string())),
        pa.array(ROWS, pa.list_view(pa.string())),
        pa.array(ROWS, pa.large_list_view(pa.string())),
        pa.array([["x"], *ROWS, ["y"]]).slice(1, 4),
        pa.ListArray.from_arrays(
            pa.array([0, 2, 4, 4, 7], pa.int32()),
            pa.array(["a", "b", "?", "?", "c", None, "a"]),
            mask=pa.array([False, True, False, False]),
        ),
    ],
    ids=["list", "large_list", "list_view", "large_list_view", "slice", "values_under_a_null"],
)
def test_lists_of_any_arrow_type_come_apart_alike(array: pa.Array) -> None:
    parts = raw.lists(array, "text")
    values = parts.values.to_pylist()
    rows = [values[start : start + length] for start, length in zip(parts.starts, parts.lengths, strict=True)]
    assert rows == [["a", "b"], [], [], ["c", None, "a"]]
    assert parts.nulls is not None
    assert parts.nulls.tolist() == [False, True, False, False]
    assert parts.present_values().to_pylist() == ["a", "b", "c", None, "a"]


def test_fixed_size_lists_and_nulls_are_lists_too() -> None:
    array = pa.array([[9, 9], [1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)).slice(1)
    parts = raw.lists(array, "numbers")
    assert parts.lengths.tolist() == [2, 0, 2]
    assert [parts.values[int(start)].as_py() for start in parts.starts[[0, 2]]] == [1, 3]
    nothing = raw.lists(pa.nulls(2), "text")
    assert (nothing.lengths.tolist(), len(nothing.values)) == ([0, 0], 0)


def test_a_plain_column_is_no_list() -> None:
    with pytest.raises(raw.WrongTypeError, match="has type string, expected a list of text"):
        raw.lists(pa.array(["a"]), "text")


def test_few_values_of_long_lists_are_read_as_all_would_be() -> None:
    values = [str(at % 700) for at in range(5000)]
    parts = raw.lists(pa.array([values]), "text")
    positions = np.array([4999, 0, 17])
    assert parts.encode(positions, HASHED).tolist() == expected_ids([values[at] for at in positions])
    every = np.arange(5000)
    assert parts.encode(every, HASHED).tolist() == expected_ids(values)


def test_slices_of_chunked_columns_are_single_arrays() -> None:
    chunked = pa.chunked_array([["a", "b"], [], ["c"], ["d", "e"]])
    assert raw.slice_column(chunked, 0, 5).to_pylist() == ["a", "b", "c", "d", "e"]
    assert raw.slice_column(chunked, 1, 4).to_pylist() == ["b", "c", "d"]
    assert raw.slice_column(pa.chunked_array([["a"]]), 0, 1).to_pylist() == ["a"]
    assert raw.slice_column(pa.array(["a", "b"]), 1, 2).to_pylist() == ["b"]
