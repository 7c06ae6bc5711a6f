"""``adsieve index build`` and ``reencode`` as commands: several datasets, a store's updates, the summary."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from contracts.errors import InputError, LogError
from indexing.cli import app
from indexing.index import Index
from indexing.store import DirectoryStore
from indexing.update_record import Content, Update


def run(command: str, **options: object) -> Result:
    arguments = [command]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            arguments += [f"--{name.replace('_', '-')}"] + ([] if one is True else [str(one)])
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def options(bundles: Path, tmp_path: Path) -> dict[str, object]:
    two_tower, heavy = bundles / "two_tower", bundles / "heavy"
    return {"two_tower": two_tower, "heavy": heavy, "out": tmp_path / "index", "engine": "onnxruntime_cpu"}


def test_several_places_make_one_dataset(ads: Path, options: dict, tmp_path: Path) -> None:
    places = [f"{ads}/[ab].parquet", ads / "c.parquet"]
    built = run("build", ads=places, json=True, **options)
    assert built.exit_code == 0, built.output
    summary = json.loads(built.stdout)
    assert (summary["num_ads"], summary["resumed_ads"], summary["engine"]) == (160, 0, "onnxruntime_cpu")
    assert summary["bytes"] == sum(entry.bytes for entry in Index.open(tmp_path / "index").manifest.files.values())
    assert summary["ads_per_s"] == pytest.approx(160 / summary["seconds"], rel=0.1)
    assert summary["peak_memory_bytes"] > 10**7
    assert {"coverage", "shift", "retrieval", "watermark", "catalog"} <= summary.keys()
    again = run("build", ads=ads, **{**options, "out": tmp_path / "again"})
    assert f"{tmp_path / 'again'}: {summary['version']}, 160 ads as of" in again.stdout


def test_a_file_that_is_given_twice_and_an_ad_in_two_places_are_refused(
    ads: Path, ads_table: Callable[..., pa.Table], options: dict, tmp_path: Path
) -> None:
    twice = run("build", ads=[ads, ads / "c.parquet"], **options).exception
    assert isinstance(twice, LogError)
    assert "c.parquet: comes twice" in str(twice)
    pq.write_table(ads_table(200).slice(130, 1), tmp_path / "other.parquet")
    tie = run("build", ads=[ads, tmp_path / "other.parquet"], **options).exception
    assert isinstance(tie, LogError)
    assert "other.parquet: ad 'ad-130' has a second row with valid_from" in str(tie)
    assert f"the other is in {ads / 'c.parquet'}" in str(tie)


def test_updates_of_a_store_are_merged_and_reencoded(ads: Path, bundles: Path, options: dict, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    features = {"category": "shoes", "price": 3.0, "image": [0.0, 1.0]}
    content = Content(scenario="shopping", valid_from=5, features=features)
    store.append_updates(
        [Update(ad_id="new", at=5, bid=2.0, content=content), Update(ad_id="ad-1", at=1, takedown=True)]
    )
    built = run("build", ads=ads, store=tmp_path / "store", **options)
    assert built.exit_code == 0, built.output
    assert "1 ads from updates up to number 2" in built.stdout
    index = Index.open(tmp_path / "index")
    assert index.manifest.updates == store.update_log().end
    assert index.bids[index.id_table.lookup(["new"])].tolist() == [2.0]
    parts = {"index": tmp_path / "index", "heavy": bundles / "heavy", "ads": ads}
    assert isinstance(run("reencode", out=tmp_path / "again", **parts).exception, LogError)
    again = run("reencode", out=tmp_path / "again", store=tmp_path / "store", json=True, **parts)
    assert again.exit_code == 0, again.output
    summary = json.loads(again.stdout)
    assert (summary["num_ads"], summary["reencoded_from"]) == (161, index.manifest.version)
    assert summary["version"] == index.manifest.version  # the same heavy bundle gives the same content
    inside = run("reencode", out=tmp_path / "index" / "again", **parts).exception
    assert isinstance(inside, InputError)
    assert "lies inside --index" in str(inside)
