"""What no index may hold: bids that are no bids, times that are no dates, columns that come twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from contracts.errors import LogError
from contracts.release import IndexManifest
from indexing.attributes import ad_attributes, invalid_bids
from indexing.cli import app
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from indexing.update_log import UpdateLog
from indexing.update_parquet import read_parquet
from indexing.update_record import Content, Update

RULE = "bid: expected a finite number of at least 0, or null"
BAD_BIDS = (np.nan, np.inf, -np.inf, -0.5, 1e39)


def build(
    ads: Path, bundles: Path, out: Path, *, log: UpdateLog | None = None, max_dropped_share: float = 0.5
) -> IndexManifest:
    config = IndexConfig(threads=1, batch_size=16, engine="onnxruntime_cpu", max_dropped_share=max_dropped_share)
    parts = {"two_tower": bundles / "two_tower", "heavy": bundles / "heavy"}
    return build_index(ads=ads, **parts, out=out, config=config, updates=log)


@pytest.fixture
def make_ads(tmp_path: Path, ads_table: Callable[..., pa.Table]) -> Callable[..., Path]:
    def make(num_ads: int = 40, **columns: Any) -> Path:
        path = tmp_path / "ads.parquet"
        pq.write_table(ads_table(num_ads, scenario=["shopping"] * num_ads, **columns), path)
        return path

    return make


def test_ads_with_bids_that_are_no_bids_are_dropped_and_counted(
    make_ads: Callable, bundles: Path, tmp_path: Path
) -> None:
    bids = [*BAD_BIDS, None, 0.0, *[0.25] * 33]
    ads = make_ads(bid=bids)
    manifest = build(ads, bundles, tmp_path / "index")
    assert (manifest.num_ads, manifest.dropped["bid"], manifest.faults[RULE]) == (35, 5, 5)
    index = Index.open(tmp_path / "index")
    ids = pq.read_table(ads)["ad_id"].to_pylist()
    rows = index.id_table.lookup(ids)
    assert rows[:5].tolist() == [-1] * 5
    np.testing.assert_array_equal(index.bids[rows[5:]], np.array([np.nan, 0, *[0.25] * 33], np.float32))


def test_too_many_of_them_stop_the_build(make_ads: Callable, bundles: Path, tmp_path: Path) -> None:
    ads = make_ads(bid=[np.nan] * 4 + [1.0] * 36)
    with pytest.raises(LogError, match=r"4 of 40 ads .* cannot be embedded.*'bid: expected a finite number"):
        build(ads, bundles, tmp_path / "index", max_dropped_share=0.05)


@pytest.mark.parametrize("bid", BAD_BIDS)
def test_new_content_does_not_make_a_bad_bid_of_the_catalogue_none(
    make_ads: Callable, bundles: Path, tmp_path: Path, bid: float
) -> None:
    ads = make_ads(bid=[1.0, bid, bid, *[1.0] * 37])
    log = UpdateLog(tmp_path / "updates")
    features = {"category": "shoes", "price": 3.0, "image": [0.1, 0.2]}
    content = Content(scenario="shopping", valid_from=2 * 10**15, features=features)
    log.append([Update(ad_id="ad-1", at=2 * 10**15, content=content)])
    log.append([Update(ad_id="ad-2", at=2 * 10**15, bid=0.75, content=content)])
    manifest = build(ads, bundles, tmp_path / "index", log=log)
    assert (manifest.num_ads, manifest.dropped["bid"], manifest.faults[RULE]) == (39, 1, 1)
    index = Index.open(tmp_path / "index")
    first, second = index.id_table.lookup(["ad-1", "ad-2"])
    assert (first, index.bids[second]) == (-1, 0.75)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None, -1, 2**24 + 1]), [False, False, True, False]),
        (pa.array([1, 2**63], pa.uint64()), [False, False]),
        (pa.array(np.array([1, np.nan, -1, np.inf], np.float16)), [False, True, True, True]),
        (pa.array([0.5, None, float("nan")], pa.float32()), [False, False, True]),
        (pa.nulls(2), [False, False]),
    ],
)
def test_bids_of_any_number_type(column: pa.Array, expected: list[bool]) -> None:
    table = pa.table({"bid": column})
    assert invalid_bids(table, source="ads").tolist() == expected
    given = [np.nan if value is None else value for value in column.to_pylist()]
    bids = ad_attributes(table, ["click"], source="ads").bids
    np.testing.assert_array_equal(bids, np.array(given, np.float64).astype(np.float32))


@pytest.mark.parametrize(
    ("value", "unit", "named"),
    [
        (2**62, "us", str(2**62)),
        (-(2**61), "us", str(-(2**61))),
        (2**62, "ms", str(2**62)),
        (253402300800, "s", "2534023008"),
    ],
)
def test_a_time_beyond_the_years_of_a_date_is_refused_before_anything_is_embedded(
    make_ads: Callable, bundles: Path, tmp_path: Path, value: int, unit: str, named: str
) -> None:
    times = pa.array([value, *range(39)], pa.timestamp(unit, "UTC"))
    ads = make_ads(valid_from=times)
    with pytest.raises(
        LogError, match=rf"ads\.parquet: column valid_from.*{named}.*expected a time of the years 1 to 9999"
    ):
        build(ads, bundles, tmp_path / "index")
    assert not (tmp_path / ".index.work" / "index").exists()


def test_the_last_moment_of_9999_is_taken(make_ads: Callable, bundles: Path, tmp_path: Path) -> None:
    times = pa.array([253402300799999999, *range(39)], pa.timestamp("us", "UTC"))
    manifest = build(make_ads(valid_from=times), bundles, tmp_path / "index")
    assert manifest.catalog["ahead"] == 1
    assert manifest.num_ads == 40
    assert manifest.watermark == "1970-01-01T00:00:00.000038+00:00"  # of the others


def test_two_columns_of_one_name_are_refused_by_build_and_update(
    make_ads: Callable, bundles: Path, tmp_path: Path
) -> None:
    ads = make_ads()
    table = pq.read_table(ads)
    pq.write_table(table.append_column("price", table["price"]), ads)
    build_arguments = ["--two-tower", bundles / "two_tower", "--ads", ads, "--out", tmp_path / "index"]
    result = CliRunner().invoke(app, ["build", *map(str, build_arguments)])
    with pytest.raises(LogError) as of_update:
        next(read_parquet(ads, {}))
    for error in (result.exception, of_update.value):
        assert "ads.parquet: has several columns of one name: ['price']; expected one of each" in str(error)
        assert error.exit_code == 2
