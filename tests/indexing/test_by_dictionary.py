"""A catalogue whose text is read as dictionaries holds what a plain reading of its files does."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import LogError
from contracts.records import open_dataset
from indexing.catalog import Catalog
from indexing.plan import plan_catalog

ADS, GROUP, BATCH = 700, 150, 64
COLUMNS = ["ad_id", "valid_from", "advertiser_id", "color", "title", "words", "sizes", "image", "seller"]
WORDS = [f"word-{number}" for number in range(90)]


def ads(first: int) -> pa.Table:
    """Ads with repeated and with single texts, lists of texts of which some are empty or null, and other columns."""
    rng = np.random.default_rng(first)
    number = np.arange(first, first + ADS)
    words = [None if one % 11 == 0 else list(rng.choice(WORDS, one % 4)) for one in number]
    colors = [None if one % 13 == 0 else f"color-{one * one % 7}" for one in number]
    return pa.table(
        {
            "ad_id": [f"ad-{one}" for one in number],
            "valid_from": pa.array(1_700_000_000_000_000 + number, pa.timestamp("us", "UTC")),
            "scenario": pa.array(np.where(number % 5 == 0, "other", "ours")),
            "advertiser_id": [f"seller-{one % 9}" for one in number],
            "color": pa.array(colors, pa.string()),
            "title": [f"title {one}" for one in number],
            "words": pa.array(words, pa.list_(pa.string())),
            "sizes": pa.array([[one, one + 1] for one in number], pa.list_(pa.int64())),
            "image": pa.array(rng.random((ADS, 2)).tolist(), pa.list_(pa.float32())),
            "seller": pa.array([f"seller-{one % 9}" for one in number]).dictionary_encode(),
        }
    )


def catalogue(directory: Path, options: dict[str, object]) -> tuple[Catalog, pa.Table]:
    """Two files of which one row of each fifth ad is left out, and what remains of them in order."""
    directory.mkdir()
    tables = [ads(0), ads(ADS)]
    for number, table in enumerate(tables):
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=GROUP, **options)
    catalog = plan_catalog(
        open_dataset(directory), scenario="ours", as_of=None, directory=directory.parent / f"plan-{directory.name}"
    )
    whole = pa.concat_tables(tables)
    return catalog, whole.filter(pa.compute.equal(whole["scenario"], "ours")).select(COLUMNS)


@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False}, {"dictionary_pagesize_limit": 64, "data_page_size": 256}],
    ids=["dictionaries", "plain pages", "dictionaries that overflow"],
)
def test_rows_are_those_of_a_plain_reading(tmp_path: Path, options: dict[str, object]) -> None:
    catalog, expected = catalogue(tmp_path / "ads", options)
    batches = [table for table, _ in catalog.batches(COLUMNS, BATCH)]
    assert pa.types.is_dictionary(batches[0].schema.field("color").type)
    assert pa.types.is_dictionary(batches[0].schema.field("words").type.value_type)
    assert batches[0].schema.field("advertiser_id").type == pa.string()
    assert {len(batch) for batch in batches[: len(batches) // 2 - 1]} == {BATCH}
    assert [row for batch in batches for row in batch.to_pylist()] == expected.to_pylist()


def test_rows_after_those_that_are_passed_over_are_the_same(tmp_path: Path) -> None:
    catalog, expected = catalogue(tmp_path / "ads", {})
    rows = [row for table, _ in catalog.batches(COLUMNS, BATCH, 3 * BATCH) for row in table.to_pylist()]
    assert rows == expected.to_pylist()[3 * BATCH :]


def test_files_that_hold_a_column_in_another_type_are_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "ads").mkdir()
    first, second = ads(0), ads(ADS)
    colors = second.schema.get_field_index("color")
    other = second.set_column(colors, "color", second["color"].cast(pa.large_string()))
    for number, table in enumerate((first, other)):
        pq.write_table(table, tmp_path / "ads" / f"{number}.parquet")
    catalog = plan_catalog(open_dataset(tmp_path / "ads"), scenario="ours", as_of=None, directory=tmp_path / "plan")
    found = [value for table, _ in catalog.batches(["color"], BATCH) for value in table["color"].to_pylist()]
    whole = pa.concat_tables([first, second])
    assert found == whole.filter(pa.compute.equal(whole["scenario"], "ours"))["color"].to_pylist()


def test_text_of_a_dictionary_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ads").mkdir()
    table = ads(0)
    broken = pa.array([b"\xff\xfe" if one == 5 else b"fine" for one in range(ADS)], pa.binary()).view(pa.string())
    table = table.set_column(table.schema.get_field_index("color"), "color", broken)
    pq.write_table(table, tmp_path / "ads" / "0.parquet")
    catalog = plan_catalog(open_dataset(tmp_path / "ads"), scenario="ours", as_of=None, directory=tmp_path / "plan")
    with pytest.raises(LogError, match=r"0\.parquet: damaged"):
        list(catalog.batches(["color"], BATCH))
