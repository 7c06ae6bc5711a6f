"""A group of a few ads cannot fill the lists that a large one is divided into: it is flat, whatever is set."""

from pathlib import Path

import numpy as np
import pytest

from contracts.config import convert
from contracts.schema import FeatureSchema
from indexing.config import IndexConfig
from indexing.retrieval import Retrieval
from indexing.retrieval_build import build_retrieval

HEAD_DIM = 8


@pytest.mark.parametrize("num_ads", [0, 1, 2, 3, 4, 5, 9, 40])
def test_a_group_of_any_size_is_written_and_searched(tmp_path: Path, tower_schema: dict, num_ads: int) -> None:
    schema = convert(tower_schema, FeatureSchema, source="schema")
    rng = np.random.default_rng(num_ads)
    rest = 3 if num_ads == 0 else 0  # an index of no ad at all is none
    codes = [schema.objective_names.index("click")] * num_ads + [-1] * rest
    blocks = {
        "vectors": rng.normal(size=(num_ads + rest, 2 * HEAD_DIM)).astype(np.float32),
        "bias": rng.normal(size=(num_ads + rest, 2)).astype(np.float32),
        "bids": rng.lognormal(size=num_ads + rest).astype(np.float32),
        "objectives": np.array(codes, np.int8),
        "status": np.zeros(num_ads + rest, np.int8),
    }
    for name, block in blocks.items():
        np.save(tmp_path / f"{name}.npy", block)
    queries = rng.normal(size=(6, 2, HEAD_DIM + 2)).astype(np.float32)
    queries[:, :, HEAD_DIM] = 1
    told = build_retrieval(
        tmp_path, schema, head_dim=HEAD_DIM, queries=queries, config=IndexConfig(flat_below=0, threads=1)
    )
    assert {one["kind"] for one in told.heads.values()} == {"flat"} or num_ads > 4
    retrieval = Retrieval.open(tmp_path / "retrieval", num_heads=2, head_dim=HEAD_DIM)
    assert sorted(retrieval.search(queries[0], None, 100, None)) == list(range(num_ads + rest))
