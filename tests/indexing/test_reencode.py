"""A re-encoded index equals a build with the other heavy bundle, file by file, and shares the rest with its source."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import LogError, MismatchError
from contracts.release import IndexManifest
from indexing import reencode
from indexing.compaction import compact
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from indexing.reencode import BLOCKS, reencode_index
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update

CONFIG = IndexConfig(threads=1, engine="onnxruntime_cpu", precision="fp32")


def build(ads: Path, two_tower: Path, heavy: Path | None, out: Path, log: UpdateLog | None = None) -> IndexManifest:
    return build_index(ads=ads, two_tower=two_tower, heavy=heavy, out=out, config=CONFIG, updates=log)


@pytest.fixture
def other(make_heavy: Callable, heavy_schema: dict[str, Any], tmp_path: Path) -> Path:
    """A heavy bundle with other features of the ads."""
    features = {**heavy_schema["features"], "price": {"side": "ad", "kind": "dense", "default": 0.0}}
    del features["image"]
    make_heavy(tmp_path / "other", schema={**heavy_schema, "features": features})
    return tmp_path / "other"


def check_equal(index: Path, expected: Path, source: Path) -> None:
    found, wanted = Index.open(index).manifest, Index.open(expected).manifest
    assert found.files == wanted.files
    assert found.version == wanted.version
    assert (found.heavy, found.heavy_ad_fingerprint) == (wanted.heavy, wanted.heavy_ad_fingerprint)
    assert found.coverage == wanted.coverage
    assert found.reencoded_from == Index.open(source).manifest.version
    for name in found.files:
        assert (os.stat(index / name).st_nlink == 1) == (name in BLOCKS)
        assert name in BLOCKS or os.path.samefile(index / name, source / name)


@pytest.mark.parametrize("batch", [8192, 7])
def test_a_reencoded_index_equals_a_build(
    ads: Path, bundles: Path, other: Path, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reencode, "_BATCH", batch)
    build(ads, bundles / "two_tower", bundles / "heavy", tmp_path / "source")
    build(ads, bundles / "two_tower", other, tmp_path / "expected")
    reencode_index(index=tmp_path / "source", heavy=other, ads=ads, out=tmp_path / "index")
    check_equal(tmp_path / "index", tmp_path / "expected", tmp_path / "source")


def test_an_index_without_a_heavy_block_gets_one(ads: Path, bundles: Path, tmp_path: Path) -> None:
    build(ads, bundles / "two_tower", None, tmp_path / "source")
    build(ads, bundles / "two_tower", bundles / "heavy", tmp_path / "expected")
    reencode_index(index=tmp_path / "source", heavy=bundles / "heavy", ads=ads, out=tmp_path / "index")
    check_equal(tmp_path / "index", tmp_path / "expected", tmp_path / "source")


def test_neither_the_order_of_the_dataset_nor_later_rows_matter(
    ads: Path, ads_table: Callable[..., pa.Table], bundles: Path, other: Path, tmp_path: Path
) -> None:
    build(ads, bundles / "two_tower", bundles / "heavy", tmp_path / "source")
    build(ads, bundles / "two_tower", other, tmp_path / "expected")
    table = pa.concat_tables([pq.read_table(file) for file in ads.iterdir()])
    shuffled = table.take(pa.array(np.random.default_rng(0).permutation(len(table))))
    later = ads_table(30, seed=9, valid_from=pa.array([3 * 10**15] * 30, pa.timestamp("us", "UTC")))
    pq.write_table(pa.concat_tables([later, shuffled]), tmp_path / "shuffled.parquet")
    reencode_index(index=tmp_path / "source", heavy=other, ads=tmp_path / "shuffled.parquet", out=tmp_path / "index")
    check_equal(tmp_path / "index", tmp_path / "expected", tmp_path / "source")


def test_merged_content_is_read_from_the_log(ads: Path, bundles: Path, other: Path, tmp_path: Path) -> None:
    features = {"category": "shoes", "price": 3.0, "image": [0.0, 1.0]}
    log = UpdateLog(tmp_path / "updates")
    log.append(
        [
            Update(ad_id=ad_id, at=1, content=Content(scenario="shopping", valid_from=valid_from, features=features))
            for ad_id, valid_from in (("ad-1", 4 * 10**15), ("new", 5), ("new", 4), ("ad-2", 1))
        ]
    )
    build(ads, bundles / "two_tower", bundles / "heavy", tmp_path / "source", log)
    build(ads, bundles / "two_tower", other, tmp_path / "expected", log)
    arguments = {"index": tmp_path / "source", "heavy": other, "ads": ads}
    with pytest.raises(
        LogError, match=r"2 of its 161 ads are not in the dataset .*\['ad-1', 'new'\].* the store whose"
    ):
        reencode_index(**arguments, out=tmp_path / "index")
    reencode_index(**arguments, out=tmp_path / "index", updates=log)
    check_equal(tmp_path / "index", tmp_path / "expected", tmp_path / "source")
    compact(log, [log.end])
    with pytest.raises(LogError, match=r"2 of its 161 ads .*; they came from updates that `prune` has since dropped; "):
        reencode_index(**arguments, out=tmp_path / "again", updates=log)


def test_faults_of_the_dataset_are_named(
    ads: Path, ads_table: Callable[..., pa.Table], bundles: Path, other: Path, tmp_path: Path, make_heavy: Callable
) -> None:
    build(ads, bundles / "two_tower", bundles / "heavy", tmp_path / "source")

    def refused(table: pa.Table, message: str, heavy: Path = other) -> None:
        pq.write_table(table, tmp_path / "ads.parquet")
        with pytest.raises((LogError, MismatchError), match=message):
            reencode_index(index=tmp_path / "source", heavy=heavy, ads=tmp_path / "ads.parquet", out=tmp_path / "i")
        assert not (tmp_path / "i").exists()
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]

    table = pa.concat_tables([pq.read_table(file) for file in sorted(ads.iterdir())])
    refused(table.slice(60), r"\d+ of its 160 ads are not in the dataset")
    refused(table.drop_columns(["price"]), r"lacks the columns \['price'\] that heavy-all-\w+ was trained on")
    prices = pa.array([*table["price"].to_pylist()[:-40], *[float("nan")] * 40])
    bad = table.set_column(table.schema.get_field_index("price"), "price", prices)
    refused(bad, r"of its ads hold values that the heavy bundle cannot take: .*price")
    make_heavy(tmp_path / "standard", scenario="standard")
    refused(table, "of scenario 'standard', expected none or 'shopping'", tmp_path / "standard")

    twice = pa.concat_tables([table, table.filter(pa.compute.equal(table["ad_id"], "ad-100"))])
    refused(twice, r"ads\.parquet: ad 'ad-100' has a second row with the valid_from that the index keeps")
