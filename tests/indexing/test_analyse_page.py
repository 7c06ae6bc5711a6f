"""The queries of the how-to page over an export: DuckDB and Polars find in it what the index holds."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.records import STATUSES
from indexing.config import IndexConfig
from indexing.export import export_index
from indexing.index import Index
from indexing.nightly import build_index

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "analyse.md"
SECTION = PAGE.read_text().split("\n## Embeddings\n")[1].split("\n## ")[0]
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))


@pytest.fixture
def index(ads: Path, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    settings = IndexConfig(threads=1, engine="onnxruntime_cpu")
    build_index(ads=str(ads), two_tower=bundles / "two_tower", heavy=None, out=tmp_path / "index", config=settings)
    monkeypatch.chdir(tmp_path)
    opened = Index.open(tmp_path / "index")
    export_index(opened, Path("ads.parquet"))
    return opened


def test_the_pages_queries_find_what_the_index_holds(index: Index) -> None:
    found: dict[str, Any] = {}
    exec(compile(CODE, str(PAGE), "exec"), found)
    assert not re.findall(r"^\$", CODE, re.MULTILINE)
    ids, width = index.id_table.texts(0, len(index)).to_pylist(), index.manifest.head_dim
    vectors = np.asarray(index.vectors[:], np.float32)[:, :width]
    np.testing.assert_array_equal(found["embeddings"], vectors)
    assert found["ads"]["ad_id"].to_list() == ids
    assert sum(count for _, _, count, _ in found["kinds"]) == len(index)
    counted = Counter(STATUSES[code] for code in index.status[:].tolist())
    assert counted == sum((Counter({status: count}) for status, _, count, _ in found["kinds"]), Counter())
    one = ids.index(min(ids))
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    cosines = vectors.astype(np.float64) @ vectors[one].astype(np.float64) / lengths / lengths[one]
    best = sorted((value for number, value in enumerate(cosines) if number != one), reverse=True)[:5]
    np.testing.assert_allclose([value for _, value in found["alike"]], best, rtol=1e-5)
    assert found["versions"]["adsieve.two_tower"] == index.manifest.two_tower
    assert found["leanings"]["ads"].sum() == counted["active"]
