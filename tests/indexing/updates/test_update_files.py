"""Files of updates as other programs write them, and as disks damage them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import LogError
from indexing.update_input import read_lines
from indexing.update_parquet import read_parquet


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    lines = [b'\xef\xbb\xbf{"ad_id": "a", "takedown": true}\r\n', b'{"ad_id": "b", "bid": 1}\r\n']
    assert [one.ad_id for _, one in read_lines(lines, source="x", now_us=0)] == ["a", "b"]


def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    [(_, update)] = read_lines([b'{"ad_id": "a", "bid": 1, "bid": 2}'], source="x", now_us=0)
    assert update.bid == 2.0


def test_text_that_is_not_utf_8_is_told_with_the_file(ads_table: Callable[..., pa.Table], tmp_path: Path) -> None:
    path = tmp_path / "ads.parquet"
    for column in ("ad_id", "category"):
        table = ads_table(3)
        values = pa.array([b"x", b"\xff\xfe", b"z"], pa.binary()).view(pa.string())
        pq.write_table(table.set_column(table.schema.get_field_index(column), column, values), path)
        with pytest.raises(LogError, match=r"ads\.parquet: damaged, expected Parquet that `adsieve"):
            list(read_parquet(path, {}))


@pytest.mark.parametrize("name", [b"ad_id", b"price"])
def test_a_footer_whose_names_are_damaged_is_told_as_such(
    ads_table: Callable[..., pa.Table], tmp_path: Path, name: bytes
) -> None:
    path = tmp_path / "ads.parquet"
    pq.write_table(ads_table(3), path, store_schema=False)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:footer] + data[footer:].replace(name, b"\xff" + name[1:]))
    with pytest.raises(LogError, match=r"ads\.parquet: not a Parquet file that fits the dataset"):
        list(read_parquet(path, {}))


def test_a_file_that_lost_its_end_is_told_as_such(ads_table: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "ads.parquet"
    pq.write_table(ads_table(3), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LogError, match=r"ads\.parquet: not a Parquet file that fits the dataset"):
        list(read_parquet(path, {}))
