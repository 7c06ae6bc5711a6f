"""Rows of a catalogue from the future: counted and told, they neither set the watermark nor overrule what was said."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from contracts.release import IndexManifest
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.listing import listed
from indexing.nightly import build_index
from indexing.release_table import data_age
from indexing.stores import open_store
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update

NOW = time.time_ns() // 1000
DAY = 86_400_000_000
FAR = 32_472_144_000_000_000
"""In the year 2999."""


def build(bundles: Path, directory: Path, table: pa.Table, log: UpdateLog | None = None, **options: Any) -> Any:
    directory.mkdir()
    pq.write_table(table, directory / "ads.parquet")
    return build_index(
        ads=directory / "ads.parquet",
        two_tower=bundles / "two_tower",
        heavy=None,
        out=directory / "index",
        config=IndexConfig(engine="onnxruntime_cpu", precision="fp32"),
        updates=log,
        **options,
    )


@pytest.fixture
def table(ads_table: Any) -> Any:
    """Ten ads of ``shopping``, all of the same moment but for those given by place, with all statuses active."""

    def make(valid_from: dict[int, int], **columns: Any) -> pa.Table:
        times = np.full(10, NOW - 2 * DAY)
        times[list(valid_from)] = list(valid_from.values())
        given = {"scenario": ["shopping"] * 10, "status": ["active"] * 10, **columns}
        return ads_table(10, valid_from=pa.array(times, pa.timestamp("us", "UTC")), **given)

    return make


def watermark(manifest: IndexManifest) -> int:
    return (datetime.fromisoformat(manifest.watermark) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_a_row_far_ahead_is_told_and_sets_no_watermark(table: Any, bundles: Path, tmp_path: Path) -> None:
    manifest = build(bundles, tmp_path / "day", table({3: FAR, 4: NOW + DAY // 2}))
    assert watermark(manifest) == NOW - 2 * DAY
    assert manifest.catalog["ahead"] == 1
    assert manifest.warnings[0].startswith("1 ads of the catalogue are valid from more than a day ahead; they count")
    assert manifest.num_ads == 10
    store = open_store(tmp_path / "store")
    store.publish(two_tower=bundles / "two_tower", heavy=None, index=tmp_path / "day" / "index")
    now = datetime.now(UTC)  # a slow run comes here long after NOW
    [one] = listed(store.local, "shopping", now)
    assert one.watermark_age_s == pytest.approx(now.timestamp() - (NOW - 2 * DAY) / 1e6, abs=1)


def test_where_all_rows_lie_ahead_the_watermark_is_the_time_of_the_build(
    table: Any, bundles: Path, tmp_path: Path
) -> None:
    rows = table(dict.fromkeys(range(10), FAR))
    assert NOW <= watermark(build(bundles, tmp_path / "day", rows)) <= time.time_ns() // 1000
    later = datetime.now(UTC) + timedelta(days=10**5 * 4)
    assert NOW <= watermark(build(bundles, tmp_path / "as-of", rows, as_of=later)) <= time.time_ns() // 1000


@pytest.mark.parametrize("ahead", [DAY // 2, FAR - NOW], ids=["half a day", "centuries"])
def test_a_row_that_lies_ahead_overrules_no_state(table: Any, bundles: Path, tmp_path: Path, ahead: int) -> None:
    rows = table({0: NOW + ahead, 1: NOW + ahead}, bid=[1.0] * 10)
    ids = rows["ad_id"].to_pylist()
    log = UpdateLog(tmp_path / "updates")
    # An ad of the catalogue whose row is later than what was said keeps what the row says.
    said = [NOW, NOW, NOW, NOW - 3 * DAY]
    log.append([Update(ad_id=ids[place], at=at, status="paused", bid=2.0) for place, at in enumerate(said)])
    build(bundles, tmp_path / "day", rows, log)
    index = Index.open(tmp_path / "day" / "index")
    found = index.id_table.lookup(ids)
    assert index.status[found][:5].tolist() == [1, 1, 1, 0, 0]
    assert index.bids[found][:5].tolist() == [2.0, 2.0, 2.0, 1.0, 1.0]
    assert index.valid_from[found][:2].tolist() == [NOW + ahead] * 2


def test_content_from_the_future_keeps_the_status_of_the_row_before_it(
    table: Any, bundles: Path, tmp_path: Path
) -> None:
    rows = table({}, bid=[1.0] * 10)
    ids = rows["ad_id"].to_pylist()
    log = UpdateLog(tmp_path / "updates")
    content = Content(
        scenario="shopping", valid_from=FAR, features={"category": "shoes", "price": 1.0, "image": [0.5, 0.25]}
    )
    log.append([Update(ad_id=ids[0], at=NOW - 3 * DAY, status="paused"), Update(ad_id=ids[0], at=NOW, content=content)])
    build(bundles, tmp_path / "day", rows, log)
    index = Index.open(tmp_path / "day" / "index")
    assert index.status[index.id_table.lookup(ids[:1])].tolist() == [0], "what was said is older than the row"


def test_rows_without_a_scenario_are_counted_and_told(table: Any, bundles: Path, tmp_path: Path) -> None:
    rows = table({}, scenario=["shopping"] * 7 + [None] * 3)
    manifest = build(bundles, tmp_path / "day", rows)
    assert (manifest.num_ads, manifest.catalog["no_scenario"]) == (7, 3)
    assert "3 rows of the catalogue have no scenario and are left out" in manifest.warnings


def test_a_watermark_ahead_is_no_age_of_nothing() -> None:
    assert data_age(5) == "data 5 s old"
    assert data_age(-30) == "data 0 s old"
    assert data_age(-200_000) == "data of unknown age, its latest is 2 d 7 h ahead"


@pytest.mark.parametrize("target", ["nowhere", "empty"])
def test_a_link_in_the_place_of_the_index_is_refused_at_once(
    table: Any, bundles: Path, tmp_path: Path, target: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "index").symlink_to(tmp_path / target)
    (tmp_path / "day").rename(tmp_path / "other")
    pq.write_table(table({}), tmp_path / "ads.parquet")
    with pytest.raises(InputError, match=f"is a link to .*{target}; expected a path where nothing is"):
        build_index(
            ads=tmp_path / "ads.parquet",
            two_tower=bundles / "two_tower",
            heavy=None,
            out=tmp_path / "other" / "index",
            config=IndexConfig(engine="onnxruntime_cpu"),
        )
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["index"]
