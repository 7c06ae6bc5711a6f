"""An export reads back as what the index scores, ad by ad, and appears whole or not at all."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from contracts.errors import InputError
from contracts.probability import sigmoid
from contracts.records import STATUSES
from indexing import export as export_module
from indexing.cli import app
from indexing.config import IndexConfig
from indexing.export import export_index
from indexing.index import Index
from indexing.nightly import build_index
from indexing.store import DirectoryStore
from towers.serving import quantise_vectors, score


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def path(ads: Path, bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "index"
    parts = {"two_tower": bundles / "two_tower", "heavy": bundles / "heavy"}
    build_index(ads=str(ads), **parts, out=out, config=IndexConfig(threads=1))
    return out


@pytest.fixture(params=["fp16", "int8"])
def index(request: pytest.FixtureRequest, path: Path) -> Index:
    """Of fp16, and the same with its vectors as int8."""
    opened = Index.open(path)
    if request.param == "int8":
        integers, scales = quantise_vectors(opened.vectors.astype(np.float32), opened.bias.shape[1])
        fields = {name: getattr(opened, name) for name in opened.__dataclass_fields__}
        return Index(**fields | {"vectors": integers, "scales": scales})
    return opened


def test_the_columns_score_as_the_index_does(index: Index, tmp_path: Path) -> None:
    exported = export_index(index, tmp_path / "ads.parquet")
    assert (exported.num_ads, exported.num_files) == (len(index), 1)
    rows = pq.read_table(tmp_path / "ads.parquet").to_pylist()
    rng = np.random.default_rng(0)
    query = rng.normal(size=(2, index.manifest.head_dim + 2)).astype(np.float32)
    expected = sigmoid(score(query, index.vectors, index.bias, index.scales))
    for row, exact in zip(rows, expected, strict=True):
        for head, task in enumerate(index.manifest.tasks):
            d = index.manifest.head_dim
            logit = sum(a * b for a, b in zip(query[head, :d].tolist(), row[f"embedding_{task}"], strict=True))
            logit += query[head, d] * row[f"bias_{task}"] + query[head, d + 1]
            assert 1 / (1 + np.exp(-logit)) == pytest.approx(exact[head], abs=1e-5)


def test_ids_and_attributes_are_those_of_the_index(index: Index, tmp_path: Path) -> None:
    export_index(index, tmp_path / "ads.parquet")
    rows = pq.read_table(tmp_path / "ads.parquet").to_pylist()
    assert [row["ad_id"] for row in rows] == index.id_table.ids(np.arange(len(index)))
    assert [row["status"] for row in rows] == [STATUSES[code] for code in index.status]
    assert [row["bid"] for row in rows] == [None if np.isnan(bid) else bid for bid in index.bids.tolist()]
    objectives = [*index.manifest.objectives, None]
    assert [row["objective"] for row in rows] == [objectives[code] for code in index.objectives]
    advertisers = [*index.advertiser_ids.ids(np.arange(len(index.advertiser_ids))), None]
    assert [row["advertiser_id"] for row in rows] == [advertisers[code] for code in index.advertisers]
    assert {None} < {row["advertiser_id"] for row in rows}
    micros = np.array([np.datetime64(row["valid_from"].replace(tzinfo=None), "us") for row in rows]).astype(np.int64)
    assert micros.tolist() == index.valid_from.tolist()


def test_the_footer_tells_the_versions(path: Path, tmp_path: Path) -> None:
    manifest = Index.open(path).manifest
    export_index(Index.open(path), tmp_path / "ads.parquet")
    schema = pq.read_schema(tmp_path / "ads.parquet")
    about = {name.decode(): value.decode() for name, value in schema.metadata.items() if name.startswith(b"adsieve.")}
    assert about["adsieve.index"] == manifest.version
    assert about["adsieve.two_tower"] == manifest.two_tower
    assert about["adsieve.heavy"] == manifest.heavy
    assert about["adsieve.watermark"] == manifest.watermark
    assert json.loads(about["adsieve.tasks"]) == manifest.tasks
    assert str(schema.field("embedding_click").type).startswith("fixed_size_list<element: float not null>[4]")


def test_a_directory_of_files_holds_the_same_rows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.open(path)
    export_index(index, tmp_path / "ads.parquet")
    monkeypatch.setattr(export_module, "_ROW_GROUP", 17)
    exported = export_index(index, tmp_path / "ads", rows_per_file=50)
    assert sorted(os.listdir(tmp_path / "ads")) == [f"part-{number:05}.parquet" for number in range(4)]
    assert exported.num_files == 4
    assert ds.dataset(tmp_path / "ads").to_table().equals(pq.read_table(tmp_path / "ads.parquet"))
    assert pq.read_metadata(tmp_path / "ads/part-00000.parquet").row_group(0).num_rows == 17


@pytest.mark.parametrize("name", ["ads.parquet", "ads"])
def test_nothing_appears_when_the_export_fails_and_nothing_is_overwritten(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    index = Index.open(path)
    with monkeypatch.context() as context:
        context.setattr(export_module, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            export_index(index, tmp_path / name)
    assert os.listdir(tmp_path) == []
    export_index(index, tmp_path / name)
    with pytest.raises(InputError, match="--out .*: exists, and nothing is overwritten; give another path"):
        export_index(index, tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_the_command_exports_an_index_or_what_serves(path: Path, bundles: Path, tmp_path: Path) -> None:
    from_index = run("export", "--index", path, "--out", tmp_path / "a.parquet", "--json")
    assert from_index.exit_code == 0, from_index.output
    assert json.loads(from_index.stdout)["num_ads"] == len(Index.open(path))
    store = DirectoryStore(tmp_path / "store")
    store.publish(two_tower=bundles / "two_tower", heavy=bundles / "heavy", index=path)
    where = ["--store", tmp_path / "store", "--out", tmp_path / "b.parquet"]
    from_store = run("export", *where, "--scenario", "shopping")
    assert from_store.exit_code == 0, from_store.output
    assert "in 1 file," in from_store.stdout
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(InputError, match="--scenario other: has no release in .*; expected one of 'shopping'"):
        raise run("export", *where, "--scenario", "other").exception  # type: ignore[misc]
    with pytest.raises(InputError, match="expected --index, or --store and --scenario"):
        raise run("export", *where).exception  # type: ignore[misc]
