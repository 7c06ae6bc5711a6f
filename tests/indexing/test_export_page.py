"""The Python of the how-to page runs on an export, and its orders are those of the index."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.bundle import open_bundle
from contracts.probability import sigmoid
from contracts.rows import encode_request
from indexing.config import IndexConfig
from indexing.export import export_index
from indexing.index import Index
from indexing.nightly import build_index
from towers.serving import TwoTowerServing, score

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(ads: Path, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = IndexConfig(threads=1, engine="onnxruntime_cpu")
    build_index(ads=str(ads), two_tower=bundles / "two_tower", heavy=None, out=tmp_path / "index", config=settings)
    export_index(Index.open(tmp_path / "index"), tmp_path / "ads.parquet")
    (tmp_path / "shopping").symlink_to(bundles / "two_tower")
    (tmp_path / "request.json").write_text(json.dumps({"query": {"country": "DE", "city": "Ulm"}, "candidates": []}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pages_code_gives_the_probabilities_and_orders_of_the_index(directory: Path) -> None:
    assert len(BLOCKS) == 2
    found: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), found)
    index, bundle = Index.open(directory / "index"), open_bundle(directory / "shopping")
    width = index.manifest.head_dim
    towers = TwoTowerServing.load(bundle, threads=1)
    encoded, _ = encode_request(towers.query_encoder, {"country": "DE"}, event_time_us=0)
    expected = sigmoid(score(towers.embed_query(encoded)[0], index.vectors, index.bias))[:, 0]
    np.testing.assert_allclose(found["p"], expected, rtol=1e-5)
    assert found["unknown"] == ["city"]
    for name, numbers in (("pins", width + 1), ("cosine_pins", width + 2)):
        assert found[name].dtype == np.float32
        assert len(found[name][0].tobytes()) == 4 * numbers
    assert len(found["query"].tobytes()) == 4 * (width + 1)
    assert len(found["cosine_query"].tobytes()) == 4 * (width + 2)
    pins, query = found["cosine_pins"].astype(np.float64), found["cosine_query"].astype(np.float64)
    cosines = pins @ query / np.linalg.norm(pins, axis=1) / np.linalg.norm(query)
    inner = found["pins"].astype(np.float64) @ found["query"].astype(np.float64)
    longest = np.linalg.norm(found["pins"].astype(np.float64), axis=1).max()
    np.testing.assert_allclose(cosines, inner / longest / np.linalg.norm(query), atol=1e-6)
    assert set(found["best"].tolist()) == set(np.argsort(-expected)[:10].tolist())


def test_the_pages_code_refuses_pins_of_another_version(
    directory: Path, make_two_tower: Callable, tmp_path: Path
) -> None:
    (directory / "shopping").unlink()
    (directory / "shopping").symlink_to(make_two_tower(tmp_path / "other", seed=1).path)
    found: dict[str, Any] = {}
    exec(compile(BLOCKS[0], str(PAGE), "exec"), found)
    with pytest.raises(SystemExit, match="another version embedded these ads"):
        exec(compile(BLOCKS[1], str(PAGE), "exec"), found)
