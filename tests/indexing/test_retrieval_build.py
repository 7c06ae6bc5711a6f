"""What is searched is what is scored, whatever the precision of the vectors."""

from pathlib import Path

import numpy as np
import pytest

from contracts.config import convert
from contracts.schema import FeatureSchema
from indexing.blocks import objective_heads
from indexing.retrieval import IMPRESSION, Retrieval, log_bid
from indexing.retrieval_build import RetrievalReport, build_retrieval
from towers.serving import quantise_vectors, score

NUM_ADS, HEAD_DIM = 300, 8


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_search_orders_by_the_scores_of_the_blocks(tmp_path: Path, tower_schema: dict, precision: str) -> None:
    schema = convert(tower_schema, FeatureSchema, source="schema")
    rng = np.random.default_rng(3)
    # lengths differ by a thousand, so that integers without their scales would give another order
    vectors = (rng.normal(size=(NUM_ADS, 2 * HEAD_DIM)) * rng.choice([0.01, 1, 10], (NUM_ADS, 1))).astype(np.float32)
    scales = None
    if precision == "int8":
        vectors, scales = quantise_vectors(vectors, 2)
        np.save(tmp_path / "scales.npy", scales)
    elif precision == "fp16":
        vectors = vectors.astype(np.float16)
    bias = rng.normal(size=(NUM_ADS, 2)).astype(np.float32)
    bids = rng.lognormal(size=NUM_ADS).astype(np.float32)
    objectives = rng.integers(-1, 3, NUM_ADS).astype(np.int8)
    status = np.zeros(NUM_ADS, np.int8)
    for name, block in {
        "vectors": vectors,
        "bias": bias,
        "bids": bids,
        "objectives": objectives,
        "status": status,
    }.items():
        np.save(tmp_path / f"{name}.npy", block)

    told = build_retrieval(tmp_path, schema, head_dim=HEAD_DIM)

    heads = np.array([*objective_heads(schema), 0])[objectives]
    ads = {task: {"kind": "flat", "ads": int((heads == head).sum())} for head, task in enumerate(schema.tasks)}
    assert told == RetrievalReport(ads, {})
    query = rng.normal(size=(2, HEAD_DIM + 2)).astype(np.float32)
    query[:, HEAD_DIM] = 1
    logits = np.c_[score(query, vectors, bias, scales), np.zeros(NUM_ADS)]
    scores = log_bid(bids) + np.where(heads == IMPRESSION, 0, logits[np.arange(NUM_ADS), heads])
    found = Retrieval.open(tmp_path / "retrieval", num_heads=2, head_dim=HEAD_DIM).search(query, None, NUM_ADS, None)
    np.testing.assert_allclose(scores[found], np.sort(scores)[::-1], rtol=1e-5, atol=1e-5)
    assert sorted(found) == list(range(NUM_ADS))
