"""A build whose pin towers run as Ray actors is the local build, byte for byte."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from contracts.errors import InputError, LogError
from contracts.records import open_dataset
from indexing import ray_embed
from indexing.catalog import Catalog
from indexing.cli import app
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import run_build
from indexing.plan import plan_catalog
from indexing.ray_embed import RayCluster, embed_batches_on_ray, shards


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A small cluster that stays for all tests."""
    with ray_embed._started(RayCluster(actors=2)):
        yield RayCluster(actors=2)


@pytest.fixture
def catalog(ads: Path, tmp_path: Path) -> Catalog:
    return plan_catalog(open_dataset(ads), scenario="shopping", as_of=None, directory=tmp_path / "plan")


@pytest.mark.parametrize("num_skipped", [0, 1, 3, 5])
def test_shards_cut_the_catalogue_at_its_batches(catalog: Catalog, num_skipped: int) -> None:
    batches = [table for table, _ in catalog.batches(["ad_id"], 20)]
    skip = sum(map(len, batches[:num_skipped]))
    of_shards = [
        table
        for start, count in shards(catalog, 20, skip, batches=2)
        for table, _ in islice(catalog.batches(["ad_id"], 20, start), count)
    ]
    assert [table["ad_id"].to_pylist() for table in of_shards] == [
        table["ad_id"].to_pylist() for table in batches[num_skipped:]
    ]


def build(ads: Path, bundles: Path, out: Path, cluster: RayCluster | None) -> dict[str, bytes]:
    """The files of an index but for the time in its manifest."""
    config = IndexConfig(batch_size=16, threads=1, engine="onnxruntime_cpu")
    parts = {"two_tower": bundles / "two_tower", "heavy": bundles / "heavy"}
    if cluster is None:
        run_build(ads=str(ads), **parts, out=out, config=config)
    else:
        embed = partial(embed_batches_on_ray, **parts, precision=config.precision, cluster=cluster)
        run_build(ads=str(ads), **parts, out=out, config=config, embed=embed)
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name not in ("manifest.json", "READY"))
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def test_the_index_is_the_local_one(
    ads: Path, bundles: Path, tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_embed, "BATCHES_PER_SHARD", 2)
    on_ray = build(ads, bundles, tmp_path / "ray", cluster)
    assert on_ray == build(ads, bundles, tmp_path / "local", None)
    assert "vectors.npy" in on_ray


def test_the_command_builds_on_ray(ads: Path, bundles: Path, tmp_path: Path, cluster: RayCluster) -> None:
    parts = ["--two-tower", str(bundles / "two_tower"), "--heavy", str(bundles / "heavy")]
    (tmp_path / "index.yaml").write_text("engine: onnxruntime_cpu\n")
    on_ray = ["--config", str(tmp_path / "index.yaml"), "--ray", "--ray-actors", "1", "--json"]
    built = CliRunner().invoke(app, ["build", "--ads", str(ads), *parts, "--out", str(tmp_path / "index"), *on_ray])
    assert built.exit_code == 0, built.output
    assert json.loads(built.stdout)["num_ads"] == len(Index.open(tmp_path / "index")) == 160


def test_a_fault_that_an_actor_finds_is_told_as_it_is_locally(
    bundles: Path, ads_table: Callable[..., pa.Table], tmp_path: Path, cluster: RayCluster
) -> None:
    ads = tmp_path / "ads.parquet"
    pq.write_table(ads_table(40, status=["active"] * 39 + ["gone"], scenario=["shopping"] * 40), ads)
    with pytest.raises(LogError, match="column status has the value 'gone', expected one of"):
        build(ads, bundles, tmp_path / "index", cluster)
    assert not (tmp_path / "index").exists()


def test_without_ray_the_command_that_installs_it_is_told(
    ads: Path, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install -r requirements/ray.txt"):
        build(ads, bundles, tmp_path / "index", RayCluster())
