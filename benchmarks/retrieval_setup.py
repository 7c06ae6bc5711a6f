"""What ``benchmarks.retrieval_recall`` measures: blocks of an index with and without structure, and requests.

Clustered vectors are as distilled towers make them: ads stand around topics, directions differ in weight, and a query
is drawn towards one topic. Structureless ones are independent normal numbers in every dimension, which no division into
lists can serve. Logits have a standard deviation of about 1.5 around -4 for the first head and -6 for the second.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from contracts.config import convert
from contracts.records import STATUSES
from contracts.schema import FeatureSchema
from indexing.arrays import ArrayWriter

HEAD_DIM, NUM_HEADS = 32, 2
BIASES = (-4.0, -6.0)
SPREAD = 1.5
TOPICS = 2_000
STATUS_SHARES = {"active": 0.95, "paused": 0.05}
OBJECTIVES = (("click", 0.6), ("conversion", 0.35), ("impression", 0.05))
_ROWS = 50_000
SCHEMA = {
    "version": 1,
    "tasks": ["click", "conversion"],
    "objectives": {"impression": None, "click": "click", "conversion": "conversion"},
    "tables": {"ad": {"dim": 4, "buckets": 1000}},
    "features": {
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "activity": {"side": "query", "kind": "dense", "default": 0.0},
    },
}


class World:
    """Where the vectors of ads and of queries come from.

    Args:
        clustered: Around topics, or without structure.
    """

    def __init__(self, *, clustered: bool, seed: int = 0) -> None:
        self._clustered, self._rng = clustered, np.random.default_rng(seed)
        weights = np.arange(1, HEAD_DIM + 1) ** (-0.5 if clustered else 0.0)
        self._weights = weights / np.sqrt((weights**4).sum()) ** 0.5
        self._topics = self._rng.normal(size=(TOPICS, NUM_HEADS, HEAD_DIM)) * self._weights
        self._popularity = self._rng.dirichlet(np.full(TOPICS, 0.5))

    def vectors(self, count: int) -> np.ndarray:
        """Of ads or queries, float32 [count, H, D]; products of two have a variance of about 1."""
        noise = self._rng.normal(size=(count, NUM_HEADS, HEAD_DIM)) * self._weights
        if not self._clustered:
            return noise.astype(np.float32)
        topics = self._topics[self._rng.choice(TOPICS, count, p=self._popularity)]
        return (np.sqrt(0.75) * topics + np.sqrt(0.25) * noise).astype(np.float32)

    def queries(self, count: int) -> np.ndarray:
        """Query embeddings, float32 [count, H, D+2]."""
        queries = np.ones((count, NUM_HEADS, HEAD_DIM + 2), np.float32)
        queries[..., :HEAD_DIM] = SPREAD * self.vectors(count)
        queries[..., -1] = BIASES
        return queries

    def batches(self, num_ads: int) -> Iterator[dict[str, np.ndarray]]:
        """The columns of ads, by block."""
        names = sorted(SCHEMA["objectives"])  # type: ignore[call-overload]
        shares = dict(OBJECTIVES)
        for start in range(0, num_ads, _ROWS):
            count = min(_ROWS, num_ads - start)
            yield {
                "vectors": self.vectors(count).reshape(count, -1).astype(np.float16),
                "bias": self._rng.normal(0, 0.3, (count, NUM_HEADS)).astype(np.float32),
                "status": self._status(count),
                "bids": self._rng.lognormal(0, 0.7, count).astype(np.float32),
                "objectives": self._rng.choice(3, count, p=[shares[name] for name in names]).astype(np.int8),
            }

    def _status(self, count: int) -> np.ndarray:
        codes = [STATUSES.index(name) for name in STATUS_SHARES]
        return self._rng.choice(codes, count, p=list(STATUS_SHARES.values())).astype(np.int8)


def write_blocks(directory: Path, world: World, num_ads: int) -> FeatureSchema:
    """Write the blocks that retrieval is made of."""
    directory.mkdir()
    with ExitStack() as stack:
        writers: dict[str, ArrayWriter] = {}
        for batch in world.batches(num_ads):
            for name, rows in batch.items():
                if name not in writers:
                    path = directory / f"{name}.npy"
                    writers[name] = stack.enter_context(ArrayWriter(path, rows.dtype, rows.shape[1:]))
                writers[name].append(rows)
    return convert(SCHEMA, FeatureSchema, source="schema")
