"""Ads are scored in chunks; how many at once changes nothing."""

import numpy as np

from contracts import compiled
from service import light
from service.light import score_pool
from service.pools import Pool


def test_chunks_change_nothing(snapshot, monkeypatch):
    monkeypatch.setattr(compiled, "_loaded", None)  # a kernel needs none
    loaded = snapshot.releases["standard"]
    rows = np.random.default_rng(0).integers(0, len(loaded.index), 500)
    rows[::50] = -1
    count = len(rows)
    pool = Pool(positions=np.arange(count), rows=rows, bids=np.ones(count), objectives=np.arange(count) % 3)
    query = loaded.tower.embed_query(loaded.tower.query_rows.encode({}, event_time_us=0).encoded)[0]
    whole = score_pool(loaded, pool, query)
    monkeypatch.setattr(light, "CHUNK", 7)
    in_chunks = score_pool(loaded, pool, query)
    # A matrix product may sum in another order where it has other rows.
    np.testing.assert_allclose(in_chunks.logits, whole.logits, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(in_chunks.utilities, whole.utilities, rtol=1e-6)
    assert (in_chunks.logits[rows < 0] == in_chunks.logits[rows < 0][0]).all()


def test_a_kernel_scores_as_numpy_does(snapshot, monkeypatch):
    loaded = snapshot.releases["standard"]
    rng = np.random.default_rng(1)
    rows = rng.integers(-1, len(loaded.index), 300).astype(np.int32)
    pool = Pool(positions=np.arange(300), rows=rows, bids=rng.random(300), objectives=rng.integers(0, 3, 300))
    query = loaded.tower.embed_query(loaded.tower.query_rows.encode({}, event_time_us=0).encoded)[0]
    assert compiled.kernels() is not None  # loading a release prepares them
    found = score_pool(loaded, pool, query)
    monkeypatch.setattr(compiled, "_loaded", None)
    plain = score_pool(loaded, pool, query)
    np.testing.assert_allclose(found.logits, plain.logits, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.utilities, plain.utilities, rtol=1e-6)
    certain = pool.objectives == loaded.objectives.codes["impression"]
    np.testing.assert_array_equal(found.utilities[certain], pool.bids[certain])
