"""Ads that pay for the impression are kept in the order of their bids, and the best ones found under any filter."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ArtifactError
from indexing.retrieval import IMPRESSION, Retrieval, log_bid
from indexing.retrieval_truth import Best, Scored, by_search, by_utility
from indexing.retrieval_writer import RetrievalWriter

BIDS = st.sampled_from([np.nan, 0.0, -0.0, 1.0, 0.999999, 1e-30, 3e38, 2.0, 0.5, -1.0, 1.0000001])


@settings(max_examples=60, deadline=None)
@given(bids=st.lists(BIDS, max_size=40), piece=st.integers(1, 15), data=st.data())
def test_impressions_are_sorted_by_bid_then_row(bids: list[float], piece: int, data: st.DataObject) -> None:
    values = np.array(bids, np.float32)
    heads = np.array(data.draw(st.lists(st.sampled_from([IMPRESSION, 0]), min_size=len(bids), max_size=len(bids))), int)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(bids), max_size=len(bids))), bool)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "retrieval"
        writer = RetrievalWriter(path, num_heads=1, head_dim=1)
        for start in range(0, len(bids), piece):
            part = slice(start, start + piece)
            count = len(heads[part])
            writer.append(np.zeros((count, 1)), np.zeros((count, 1)), heads[part], values[part])
        writer.finish()
        assert sorted(file.name for file in path.iterdir()) == sorted(
            ["head-0.faiss", "head-0.npy", "impression.npy", "impression-log-bids.npy"]
        )
        retrieval = Retrieval.open(path, num_heads=1, head_dim=1)
        assert len(retrieval) == len(bids)
        paid = np.flatnonzero(heads == IMPRESSION)
        order = paid[np.argsort(-log_bid(values[paid]), kind="stable")]
        for k, mask in ((5, None), (100, allowed), (3, allowed)):
            rows, scores = retrieval.best_impressions(k, mask)
            expected = order[:k] if mask is None else order[allowed[order]][:k]
            assert rows.tolist() == expected.tolist()
            assert scores.tolist() == log_bid(values[expected]).tolist()


def test_the_best_impressions_are_found_behind_many_that_are_not_allowed(tmp_path: Path) -> None:
    count = 60_000
    writer = RetrievalWriter(tmp_path / "retrieval", num_heads=1, head_dim=1)
    bids = np.random.default_rng(0).permutation(count).astype(np.float32) + 1
    writer.append(np.zeros((count, 1)), np.zeros((count, 1)), np.full(count, IMPRESSION), bids)
    writer.finish()
    rows, _ = Retrieval.open(tmp_path / "retrieval", num_heads=1, head_dim=1).best_impressions(3, bids < 8)
    assert bids[rows].tolist() == [7, 6, 5]


def test_impressions_that_do_not_fit_their_bids_are_refused(tmp_path: Path) -> None:
    writer = RetrievalWriter(tmp_path / "retrieval", num_heads=1, head_dim=1)
    writer.append(np.zeros((3, 1)), np.zeros((3, 1)), np.full(3, IMPRESSION), np.ones(3))
    writer.finish()
    np.save(tmp_path / "retrieval" / "impression-log-bids.npy", np.zeros(2, np.float32))
    with pytest.raises(ArtifactError, match="3 ads that pay for the impression, 2 bids"):
        Retrieval.open(tmp_path / "retrieval", num_heads=1, head_dim=1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), piece=st.sampled_from([7, 30, 200]), k=st.sampled_from([1, 10, 250]))
def test_the_best_ads_are_those_of_scoring_each(seed: int, piece: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(200, 3)) * rng.choice([0.1, 3, 30])).astype(np.float32)
    log_bids = rng.normal(size=200).astype(np.float32).round(1)
    weights, offsets = rng.random(3).astype(np.float32), rng.normal(size=3).astype(np.float32)
    utility, search = Best(3, k), Best(3, k)
    for start in range(0, 200, piece):
        part, ads = slice(start, start + piece), np.arange(start, min(start + piece, 200))
        utility.keep(by_utility(utility, logits[part], log_bids[part], ads))
        search.keep(by_search(search, logits[part], log_bids[part], ads, weights, offsets))
    exact = log_bids[:, None] - np.logaddexp(0, -logits.astype(np.float64))
    linear = (logits * weights + (log_bids[:, None] + offsets)).astype(np.float64)
    for best, scores in ((utility, exact), (search, linear)):
        for request in range(3):
            order = np.lexsort((np.arange(200), -scores[:, request]))[:k]
            assert best.ads[request].tolist() == [*order.tolist(), *[-1] * (k - len(order))]


def test_what_is_kept_elsewhere_is_taken_over_under_its_numbers() -> None:
    group, whole = Best(2, 3), Best(2, 3)
    group.keep(Scored(np.array([0, 1, 1]), np.array([4, 0, 1]), np.array([1.0, 2.0, 3.0])))
    whole.keep_for_all(np.array([7]), np.array([2.5]))
    whole.keep_from(group, np.array([10, 11, 12, 13, 14]))
    assert whole.ads.tolist() == [[7, 14, -1], [11, 7, 10]]
