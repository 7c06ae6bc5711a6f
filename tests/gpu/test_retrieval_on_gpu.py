"""Groups whose vectors stay on a GPU are searched as on the CPU. Written without one, never run."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from indexing.retrieval import Retrieval
from indexing.retrieval_files import FlatRows, set_probes, write_lists
from indexing.retrieval_gpu import has_gpu
from indexing.retrieval_writer import RetrievalWriter

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs a GPU and faiss-gpu")]

NUM_ADS, HEAD_DIM, LISTS = 20_000, 16, 64


@pytest.fixture(params=["flat", "ivf"])
def retrieval(request: pytest.FixtureRequest, tmp_path: Path) -> Retrieval:
    """One head, flat or in lists, of which half are looked into."""
    rng, directory = np.random.default_rng(0), tmp_path / "retrieval"
    writer = RetrievalWriter(directory, num_heads=1, head_dim=HEAD_DIM)
    vectors, bias = rng.normal(size=(NUM_ADS, HEAD_DIM)), rng.normal(size=(NUM_ADS, 1))
    writer.append(vectors, bias, np.zeros(NUM_ADS, int), rng.lognormal(size=NUM_ADS))
    writer.finish()
    if request.param == "ivf":
        rows = FlatRows(directory / "head-0.faiss", NUM_ADS, HEAD_DIM + 2)
        centroids = rows.read(0, LISTS).copy()
        nearest = faiss.IndexFlatL2(HEAD_DIM + 2)
        nearest.add(centroids)
        lists = nearest.search(rows.read(0, NUM_ADS), 1)[1][:, 0]
        write_lists(tmp_path / "lists", rows, np.arange(NUM_ADS), lists, centroids)
        set_probes(tmp_path / "lists", LISTS // 2)
        (tmp_path / "lists").rename(directory / "head-0.faiss")
    return Retrieval.open(directory, num_heads=1, head_dim=HEAD_DIM)


@pytest.mark.parametrize("share", [1.0, 0.9, 0.3, 0.05])
@pytest.mark.parametrize("k", [10, 400, 3000])
def test_a_gpu_finds_what_the_cpu_finds(retrieval: Retrieval, share: float, k: int) -> None:
    rng, on_gpu = np.random.default_rng(1), retrieval.on_gpu()
    allowed = None if share == 1.0 else rng.random(NUM_ADS) < share
    for _ in range(10):
        query = rng.normal(size=(1, HEAD_DIM + 2)).astype(np.float32)
        expected, found = (each.search(query, None, k, allowed) for each in (retrieval, on_gpu))
        assert len(found) == len(expected)
        assert np.isin(found, expected).mean() >= 0.999  # sums in another order may exchange equals at the end
