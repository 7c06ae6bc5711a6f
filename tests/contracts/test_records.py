"""Datasets open whatever their encoding, faults are named, and times become UTC."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import LogError
from contracts.records import (
    REQUIRED_COLUMNS,
    TEXT,
    LogPaths,
    check_columns,
    dataset_files,
    open_dataset,
    read_table,
    utc_micros,
)


def times(values: list[int | None], type_: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, type_ or pa.timestamp("us", tz="UTC"))


def test_a_directory_a_file_and_a_glob_open(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "day=1" / "x.parquet")
    pq.write_table(pa.table({"a": [2]}), tmp_path / "y.parquet")
    pq.write_table(pa.table({"a": [3]}), tmp_path / ".hidden.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    assert sorted(open_dataset(tmp_path).to_table()["a"].to_pylist()) == [1, 2]
    assert open_dataset(tmp_path / "y.parquet").to_table()["a"].to_pylist() == [2]
    assert dataset_files(f"{tmp_path}/**/x.parquet") == [str(tmp_path / "day=1" / "x.parquet")]


@pytest.mark.parametrize("name", ["absent", "empty", "none*.parquet"])
def test_nothing_there_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="no Parquet file here"):
        open_dataset(tmp_path / name)


def test_files_of_mixed_encodings_make_one_dataset(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x", "ü"], "n": [1, 2]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array(["x"]).dictionary_encode(), "b": [1.5]}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"a": pa.array(["z"], pa.large_string()), "n": [2.5]}), tmp_path / "3.parquet")
    table = read_table(tmp_path, ["n", "absent"], required={"a": TEXT})
    assert table.schema.field("a").type == pa.string()
    assert table.to_pydict() == {"a": ["x", "ü", "x", "z"], "n": [1.0, 2.0, None, 2.5]}


def test_files_that_disagree_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": times([1])}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"t": times([1], pa.timestamp("us"))}), tmp_path / "2.parquet")
    with pytest.raises(LogError, match=r"2\.parquet: .*incompatible types"):
        open_dataset(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    (tmp_path / "1.parquet").write_bytes((tmp_path / "1.parquet").read_bytes()[:-5])
    with pytest.raises(LogError, match=r"1\.parquet: not a Parquet file"):
        open_dataset(tmp_path)


def test_missing_columns_and_wrong_types_are_named() -> None:
    schema = pa.schema([("request_id", pa.string()), ("event_time", pa.timestamp("ms")), ("scenario", pa.string())])
    with pytest.raises(LogError, match=r"requests: column event_time has type timestamp\[ms\], expected times"):
        check_columns(schema, REQUIRED_COLUMNS["requests"], source="requests")
    with pytest.raises(LogError, match="ads: column ad_id is missing; expected text"):
        check_columns(schema, REQUIRED_COLUMNS["ads"], source="ads")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_and_zone_become_utc_micros(unit: str) -> None:
    moment = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    array = pa.array([moment]).cast(pa.timestamp(unit, tz="Europe/Berlin"))
    assert utc_micros(array, column="t", source="x").tolist() == [int(moment.timestamp()) * 1_000_000]


def test_naive_and_missing_times_are_refused() -> None:
    with pytest.raises(LogError, match=r"x: column t has type timestamp\[us\], expected"):
        utc_micros(times([1], pa.timestamp("us")), column="t", source="x")
    with pytest.raises(LogError, match="x: column t is missing in row 1"):
        utc_micros(times([1, None]), column="t", source="x")
    assert utc_micros(times([-1], pa.timestamp("ns", "UTC")), column="t", source="x").tolist() == [-1]


def test_log_paths_find_the_optional_datasets(tmp_path: Path) -> None:
    (tmp_path / "truth").mkdir()
    paths = LogPaths.under(tmp_path, candidates="scored/candidates")
    assert paths.truth == str(tmp_path / "truth")
    assert paths.outcomes is None
    assert paths.candidates == "scored/candidates"
