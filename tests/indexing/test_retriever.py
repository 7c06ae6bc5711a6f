"""What a search fetches holds the best by exact utility, also where probabilities are near 1 and the sample misled."""

from typing import Any

import numpy as np
import pytest

from contracts.utility import ObjectiveColumns, top_positions
from indexing.index import Pins
from indexing.live_search import best, search_scores
from indexing.retriever import Retriever

NUM_ADS, HEAD_DIM = 30_000, 8
OBJECTIVES = ObjectiveColumns({"click": "click", "buy": "buy", "impression": None}, ["click", "buy"])
NAMES = ["buy", "click", "impression"]


class PlainLive:
    """Stands in for a live index: the same measure, by scoring each ad. Counts its searches."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.index: Any = self
        self.all = Pins(
            rng.normal(size=(NUM_ADS, 2 * HEAD_DIM)).astype(np.float16), np.zeros((NUM_ADS, 2), np.float32), None
        )
        self._bids = rng.lognormal(0, 0.7, NUM_ADS).astype(np.float32)
        self._objectives = rng.choice(3, NUM_ADS, p=[0.4, 0.59, 0.01]).astype(np.int8)
        self.searches: list[np.ndarray] = []

    def __len__(self) -> int:
        return NUM_ADS

    def servable(self, rows: Any) -> np.ndarray:
        return np.ones(NUM_ADS, bool)[rows]

    def bids(self, rows: np.ndarray) -> np.ndarray:
        return self._bids[rows]

    def objectives(self, rows: np.ndarray) -> np.ndarray:
        return self._objectives[rows]

    @property
    def pins(self) -> Any:
        live = self

        class Take:
            take = staticmethod(live.all.take)

            def __call__(self, rows: np.ndarray) -> Pins:
                return live.all.take(rows)

        return Take()

    def search(self, query: np.ndarray, weights: np.ndarray, k: int, allowed: np.ndarray | None) -> np.ndarray:
        self.searches.append(weights)
        heads = np.array([1, 0, -1])[self._objectives]
        scores = search_scores(self.all, self._bids, heads, query, weights)
        return best(scores if allowed is None else np.where(allowed, scores, -np.inf), k)

    def exact(self, query: np.ndarray, k: int, allowed: np.ndarray) -> np.ndarray:
        heads = np.array([1, 0, 2])[self._objectives]
        products = np.einsum(
            "ahd,hd->ah", self.all.vectors.reshape(-1, 2, HEAD_DIM).astype(float), query[:, :HEAD_DIM].astype(float)
        )
        logits = np.c_[products + query[:, -1], np.full(NUM_ADS, np.inf)][np.arange(NUM_ADS), heads]
        return top_positions(np.where(allowed, self._bids / (1 + np.exp(-logits)), -1), k)


def queries(spread: float, bias: float) -> np.ndarray:
    made = np.random.default_rng(3).normal(size=(12, 2, HEAD_DIM + 2)).astype(np.float32) * spread
    made[..., HEAD_DIM], made[..., HEAD_DIM + 1] = 1, bias
    return made


def recall(retriever: Retriever, live: PlainLive, query: np.ndarray, allowed: np.ndarray) -> float:
    found = retriever.rows(query, 50, 200, allowed)
    assert (np.diff(found) > 0).all()
    assert len(found) == 200
    return float(np.isin(live.exact(query, 50, allowed), found).mean())


@pytest.mark.parametrize(("spread", "bias"), [(0.3, -5.0), (0.8, -4.0), (1.5, -4.0), (2.0, 0.0)])
@pytest.mark.parametrize("share", [1.0, 0.1, 0.01])
def test_the_best_by_exact_utility_are_fetched(spread: float, bias: float, share: float) -> None:
    live = PlainLive(1)
    retriever = Retriever(live, OBJECTIVES, OBJECTIVES.from_other(NAMES))  # type: ignore[arg-type]
    allowed = np.random.default_rng(2).random(NUM_ADS) < share
    assert np.mean([recall(retriever, live, query, allowed) for query in queries(spread, bias)]) >= 0.99


def test_a_search_is_run_again_only_where_it_cannot_be_sure() -> None:
    live = PlainLive(1)
    retriever = Retriever(live, OBJECTIVES, OBJECTIVES.from_other(NAMES))  # type: ignore[arg-type]
    everything = np.ones(NUM_ADS, bool)
    counts = []
    for spread, bias in ((0.3, -5.0), (1.5, -4.0)):
        live.searches.clear()
        for query in queries(spread, bias):
            recall(retriever, live, query, everything)
        counts.append(len(live.searches))
    assert counts[0] == 12
    assert 12 < counts[1] <= 24
