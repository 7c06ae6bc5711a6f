"""An opened index is mapped, whole, and what its manifest says; anything else is refused."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from contracts.artifact import file_sha256, read_manifest, write_json
from contracts.bundle import open_bundle
from contracts.errors import ArtifactError
from contracts.release import IndexManifest
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from towers.serving import TwoTowerServing, score


@pytest.fixture
def path(ads: Path, bundles: Path, tmp_path: Path) -> Path:
    config = IndexConfig(threads=1)
    build_index(
        ads=ads, two_tower=bundles / "two_tower", heavy=bundles / "heavy", out=tmp_path / "index", config=config
    )
    return tmp_path / "index"


def test_search_orders_ads_by_log_bid_plus_the_logit_of_their_objective(path: Path, bundles: Path) -> None:
    index = Index.open(path)
    serving = TwoTowerServing.load(open_bundle(bundles / "two_tower"), threads=1)
    query = serving.embed_query(serving.query_encoder.encode({"country": pa.array(["DE"])}).encoded)[0]
    logits = score(query, index.vectors, index.bias)
    tasks = {"click": logits[:, 0], "conversion": logits[:, 1], "impression": 0 * logits[:, 0]}
    names = [*index.manifest.objectives, "click"]
    own = np.array([tasks[names[code]][row] for row, code in enumerate(index.objectives)])
    with np.errstate(divide="ignore"):
        scores = own + np.where(np.isnan(index.bids), 0, np.log(index.bids))
    allowed = index.status == 0
    found = index.search(query, k=30, allowed=allowed)
    np.testing.assert_allclose(scores[found], np.sort(scores[allowed])[::-1][:30], rtol=1e-4, atol=1e-4)
    assert allowed[found].all()
    assert len(set(found)) == 30


def test_blocks_are_read_only_maps(path: Path) -> None:
    index = Index.open(path)
    assert len(index) == 160
    assert index.scenario == "shopping"
    assert index.heavy_ads is not None
    for block in (index.vectors, index.bias, index.status, index.bids, index.heavy_ads.ids, index.heavy_ads.floats):
        assert not block.flags.writeable
        assert not block.flags.owndata


@pytest.mark.parametrize(
    "name", ["vectors.npy", "ids/ids.bin", "ids/rows.npy", "retrieval/head-0.faiss", "heavy-ids.npy", "bids.npy"]
)
def test_damage_is_refused_by_name(path: Path, name: str) -> None:
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match=rf"{name}: truncated or altered"):
        Index.open(path)
    (path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=rf"{name}: wrong checksum"):
        Index.open(path)
    (path / name).unlink()
    with pytest.raises(ArtifactError, match=rf"{name}: missing"):
        Index.open(path)


def test_unverified_opening_still_checks_shapes(path: Path) -> None:
    (path / "bids.npy").write_bytes((path / "bids.npy").read_bytes()[:-4])
    with pytest.raises(ArtifactError, match=r"bids\.npy: not an array"):
        Index.open(path, verify=False)
    np.save(path / "bids.npy", np.zeros(3, np.float32))
    with pytest.raises(ArtifactError, match=r"expected 160 ads in each block, got \{'bids': 3\}"):
        Index.open(path, verify=False)


def test_a_manifest_of_another_shape_is_refused(path: Path) -> None:
    manifest = msgspec.structs.replace(read_manifest(path, IndexManifest), head_dim=9)
    write_json(path / "manifest.json", manifest)
    with pytest.raises(ArtifactError, match=r"manifest\.json: wrong checksum"):
        Index.open(path)
    (path / "READY").write_text(file_sha256(path / "manifest.json"))
    with pytest.raises(ArtifactError, match="not the header of a flat index of 11 dimensions"):
        Index.open(path)
    (path / "READY").unlink()
    with pytest.raises(ArtifactError, match="unfinished"):
        Index.open(path)
