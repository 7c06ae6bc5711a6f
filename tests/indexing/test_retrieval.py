"""Retrieval finds exactly the ads of largest log bid plus logit, whatever the filter."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from contracts.errors import ArtifactError
from indexing.retrieval import IMPRESSION, Retrieval, log_bid
from indexing.retrieval_writer import RetrievalWriter

NUM_ADS, NUM_HEADS, HEAD_DIM = 500, 2, 6
RNG = np.random.default_rng(5)
VECTORS = RNG.normal(size=(NUM_ADS, NUM_HEADS * HEAD_DIM)).astype(np.float16)
BIAS = RNG.normal(size=(NUM_ADS, NUM_HEADS)).astype(np.float32)
HEADS = RNG.integers(IMPRESSION, NUM_HEADS, NUM_ADS)
BIDS = RNG.lognormal(0, 2, NUM_ADS).astype(np.float32)
BIDS[::9] = np.nan
QUERY = RNG.normal(size=(NUM_HEADS, HEAD_DIM + 2)).astype(np.float32)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "retrieval"
    writer = RetrievalWriter(path, num_heads=NUM_HEADS, head_dim=HEAD_DIM)
    for part in (slice(0, 200), slice(200, 200), slice(200, None)):
        writer.append(VECTORS[part], BIAS[part], HEADS[part], BIDS[part])
    writer.finish()
    return path


@pytest.fixture(scope="module")
def retrieval(directory: Path) -> Retrieval:
    return Retrieval.open(directory, num_heads=NUM_HEADS, head_dim=HEAD_DIM)


def plain_scores(weights: np.ndarray) -> np.ndarray:
    """log bid + weight * logit of the ad's own head, by a loop."""
    scores = np.zeros(NUM_ADS)
    for ad in range(NUM_ADS):
        bid = 1.0 if np.isnan(BIDS[ad]) else float(BIDS[ad])
        head = HEADS[ad]
        scores[ad] = np.log(bid)
        if head != IMPRESSION:
            pin = np.r_[VECTORS[ad].reshape(NUM_HEADS, HEAD_DIM)[head].astype(float), BIAS[ad, head], 1.0]
            scores[ad] = scores[ad] + weights[head] * (QUERY[head].astype(float) @ pin) if weights[head] else -np.inf
    return scores


@pytest.mark.parametrize("weights", [None, [1.0, 1.0], [0.5, 2.0], [0.0, 1.0]])
@pytest.mark.parametrize("share", [1.0, 0.3, 0.01, 0.0])
@pytest.mark.parametrize("k", [1, 40, 10_000])
def test_search_equals_the_exhaustive_order(retrieval: Retrieval, weights: list | None, share: float, k: int) -> None:
    allowed = np.random.default_rng(k).random(NUM_ADS) < share
    scores = plain_scores(np.ones(NUM_HEADS) if weights is None else np.array(weights))
    scores[~allowed] = -np.inf
    expected = np.argsort(-scores, kind="stable")[: min(k, int(np.isfinite(scores).sum()))]
    found = retrieval.search(
        QUERY, None if weights is None else np.array(weights), k, None if share == 1.0 else allowed
    )
    np.testing.assert_array_equal(found, expected)


def test_few_more_than_needed_hold_the_best_by_exact_utility(retrieval: Retrieval) -> None:
    query = QUERY.copy()
    query[:, -1] -= 6  # probabilities of a percent
    logits = plain_scores(np.ones(NUM_HEADS)) - log_bid(BIDS) - 6 * (HEADS != IMPRESSION)
    probability = np.where(HEADS == IMPRESSION, 1.0, 1 / (1 + np.exp(-logits)))
    utility = np.where(np.isnan(BIDS), 1.0, BIDS) * probability
    best = np.argsort(-utility)[:20]
    assert set(best) <= set(retrieval.search(query, None, 25, None))


def test_the_files_are_faiss_files(directory: Path) -> None:
    for head in range(NUM_HEADS):
        index = faiss.read_index(str(directory / f"head-{head}.faiss"))
        mine = np.flatnonzero(head == HEADS)
        assert index.ntotal == len(mine)
        stored = np.stack([index.reconstruct(place) for place in range(len(mine))])
        own = VECTORS[mine].reshape(-1, NUM_HEADS, HEAD_DIM)[:, head]
        np.testing.assert_array_equal(stored, np.c_[own, BIAS[mine, head], log_bid(BIDS[mine])].astype(np.float32))


def test_an_index_without_ads_of_a_head_finds_nothing_there(tmp_path: Path) -> None:
    writer = RetrievalWriter(tmp_path / "r", num_heads=2, head_dim=HEAD_DIM)
    writer.append(VECTORS[:3], BIAS[:3], np.array([1, 1, 1]), BIDS[:3])
    writer.finish()
    found = Retrieval.open(tmp_path / "r", num_heads=2, head_dim=HEAD_DIM).search(QUERY, None, 10, None)
    assert sorted(found) == [0, 1, 2]


def test_damaged_files_are_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"head-0\.faiss: not a retrieval group: not the header of a flat index of 6 dimensions"
    ):
        Retrieval.open(directory, num_heads=NUM_HEADS, head_dim=4)
    with pytest.raises(ArtifactError, match=r"head-0\.faiss: not a retrieval group"):
        Retrieval.open(tmp_path, num_heads=NUM_HEADS, head_dim=HEAD_DIM)
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[: -20 if path.name == "head-1.faiss" else None])
    with pytest.raises(ArtifactError, match=r"head-1\.faiss: not a retrieval group"):
        Retrieval.open(tmp_path, num_heads=NUM_HEADS, head_dim=HEAD_DIM)


def test_what_cannot_be_bid_is_worth_least() -> None:
    assert log_bid(np.array([np.e, np.nan, 0.0, -1.0, np.inf, 1e-300])).round(3).tolist() == [
        1,
        0,
        -100,
        -100,
        -100,
        -100,
    ]
