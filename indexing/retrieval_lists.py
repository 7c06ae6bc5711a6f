"""Which lists the ads of a group are divided into, and how many of them a search must look into.

Lists are the cells of k-means over the rows of the group, the bid's dimension among them. A search looks into the lists
whose centroids score highest. How many it needs is counted, not searched for: an ad that ought to be found is found
where the rank of its list is below the number of lists. So the smallest number that finds a share of them is a
quantile of these ranks.

Shapes: N ads of the group, L lists, R requests, K best ads of a request, D width of a head's vector.
"""

import math
from dataclasses import dataclass

import faiss
import numpy as np

from indexing.retrieval_files import FlatRows

SAMPLES_PER_LIST = 32
ITERATIONS = 5
MIN_LISTS, MAX_LISTS = 4, 4096
SEED = 1
_RUN = 16
"""Neighbouring rows that are sampled together: one read of the file for all."""


def num_lists(num_ads: int) -> int:
    """How many lists N ads are divided into: half the power of two next to their square root, within bounds.

    Twice as many made a search no faster, and a build has to compare each ad with each of them.

    Example:
        >>> [num_lists(ads) for ads in (100, 100_000, 1_000_000, 100_000_000)]
        [4, 128, 512, 4096]
    """
    return int(np.clip(2 ** round(math.log2(max(num_ads, 1)) / 2) // 2, MIN_LISTS, MAX_LISTS))


def train_lists(flat: FlatRows) -> np.ndarray:
    """Centroids of the lists, float32 [L, D+2], from a sample of the rows that is always the same."""
    lists = num_lists(flat.num_rows)
    sample = _sample(flat, lists * SAMPLES_PER_LIST)
    clustering = faiss.Kmeans(
        flat.dim,
        lists,
        niter=ITERATIONS,
        seed=SEED,
        max_points_per_centroid=2 * SAMPLES_PER_LIST,
        min_points_per_centroid=1,
    )
    clustering.train(sample)
    return np.asarray(clustering.centroids)


def _sample(flat: FlatRows, wanted: int) -> np.ndarray:
    """About ``wanted`` rows, in runs spread evenly over the group."""
    if flat.num_rows <= wanted:
        return flat.read(0, flat.num_rows)
    runs = wanted // _RUN
    edges = np.linspace(0, flat.num_rows - _RUN, runs + 1).astype(np.int64)
    starts = np.random.default_rng(SEED).integers(edges[:-1], edges[1:] + 1)
    return np.concatenate([flat.read(start, start + _RUN) for start in starts.tolist()])


class Assignment:
    """Finds the nearest centroid of rows. May be used by several threads."""

    def __init__(self, centroids: np.ndarray) -> None:
        self._index = faiss.IndexFlatL2(centroids.shape[1])
        self._index.add(centroids)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Lists of rows [B, D+2], int32 [B]."""
        return self._index.search(rows, 1)[1][:, 0].astype(np.int32)


@dataclass(frozen=True)
class ListRanks:
    """The lists of a group in the order in which each request would look into them.

    Args:
        order: [R, L].
        sizes: Ads of each list [L].
    """

    order: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, asked: np.ndarray, centroids: np.ndarray, sizes: np.ndarray) -> "ListRanks":
        """The ranks for the rows [R, D+2] that requests ask with."""
        return cls(np.argsort(-(asked @ centroids.T), axis=1, kind="stable"), sizes)

    def needed(self, lists: np.ndarray, recall: float) -> int:
        """The fewest lists in which a share ``recall`` of ads is that are in ``lists`` [R, K]; -1 is no ad."""
        of_ads = self.ranks(np.maximum(lists, 0))[lists >= 0]
        if len(of_ads) == 0:
            return self.order.shape[1]
        return int(np.sort(of_ads)[max(math.ceil(recall * len(of_ads)) - 1, 0)]) + 1

    def ranks(self, lists: np.ndarray) -> np.ndarray:
        """The ranks of lists [R, K], 0 for the one that is looked into first."""
        return np.take_along_axis(np.argsort(self.order, axis=1, kind="stable"), lists, axis=1)

    def scanned(self, number: int) -> float:
        """Share of the ads that a search of ``number`` lists compares, the centroids counted too."""
        compared = self.sizes[self.order[:, :number]].sum(axis=1).mean() + len(self.sizes)
        return float(compared / self.sizes.sum())


def one_thread() -> None:
    """Let FAISS start no threads of its own in the thread that calls this: pieces of the work have one each."""
    faiss.omp_set_num_threads(1)
