"""Groups in lists: all lists find what a flat group does, some lists what the build says, whatever the filter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.config import convert
from contracts.errors import ArtifactError
from contracts.schema import FeatureSchema
from indexing.blocks import objective_heads
from indexing.config import IndexConfig
from indexing.retrieval import IMPRESSION, Retrieval, log_bid
from indexing.retrieval_build import RetrievalReport, build_retrieval
from indexing.retrieval_files import FlatRows, set_probes
from indexing.retrieval_lists import ListRanks, num_lists, train_lists
from indexing.tangent import Tangents, sample_rows, steered
from towers.serving import score

NUM_ADS, HEAD_DIM, NUM_QUERIES = 24_000, 8, 12
ALL_FLAT, ALL_LISTS = IndexConfig(flat_below=10**9), IndexConfig(flat_below=0)


class Ads:
    """Blocks of an index, around 60 topics or without structure; its requests."""

    def __init__(self, directory: Path, schema: FeatureSchema, *, clustered: bool) -> None:
        rng = np.random.default_rng(7)
        self.directory, self.schema = directory, schema
        topics = rng.normal(size=(60, 2 * HEAD_DIM)) * clustered
        noise = 0.15 if clustered else 1.0
        self.vectors = topics[rng.integers(0, 60, NUM_ADS)] + noise * rng.normal(size=(NUM_ADS, 2 * HEAD_DIM))
        self.vectors = self.vectors.astype(np.float16)
        self.bias = rng.normal(0, 0.1, (NUM_ADS, 2)).astype(np.float32)
        self.bids = rng.lognormal(0, 0.2 if clustered else 1.0, NUM_ADS).astype(np.float32)
        self.bids[::50] = np.nan
        self.status = rng.choice(3, NUM_ADS, p=[0.9, 0.05, 0.05]).astype(np.int8)
        self.objectives = rng.choice(4, NUM_ADS, p=[0.05, 0.5, 0.35, 0.1]).astype(np.int8) - 1
        self.queries = rng.normal(size=(NUM_QUERIES, 2, HEAD_DIM + 2)).astype(np.float32)
        self.queries[:, :, :HEAD_DIM] *= 0.6
        self.queries[:, :, HEAD_DIM], self.queries[:, :, HEAD_DIM + 1] = 1, -6  # small probabilities
        self.heads = np.array([*objective_heads(schema), 0])[self.objectives]
        self.allowed = (self.status == 0) & ~np.isnan(self.bids)
        for name in ("vectors", "bias", "bids", "status", "objectives"):
            np.save(directory / f"{name}.npy", getattr(self, name))

    def build(self, config: IndexConfig) -> tuple[RetrievalReport, Path]:
        report = build_retrieval(self.directory, self.schema, head_dim=HEAD_DIM, queries=self.queries, config=config)
        place = self.directory / f"retrieval-{len(list(self.directory.iterdir()))}"
        return report, (self.directory / "retrieval").rename(place)

    def logits(self, query: np.ndarray) -> np.ndarray:
        """Of what each ad's bid pays for [A]; 0 for the impression."""
        logits = np.c_[score(query, self.vectors, self.bias), np.zeros(NUM_ADS)].astype(np.float64)
        return logits[np.arange(NUM_ADS), self.heads]

    def best(self, query: np.ndarray, k: int) -> np.ndarray:
        """By exact utility, of the allowed ones, by scoring each."""
        utility = log_bid(self.bids) + np.where(self.heads == IMPRESSION, 0.0, -np.logaddexp(0, -self.logits(query)))
        utility[~self.allowed] = -np.inf
        return np.argsort(-utility, kind="stable")[:k]

    def found(self, retrieval: Retrieval, query: np.ndarray, k: int) -> np.ndarray:
        """As the service searches."""
        rows, count = sample_rows(lambda part: self.status[part] == 0, NUM_ADS)
        heads = np.where(self.heads == IMPRESSION, 2, self.heads)
        pins = _pins(self.vectors[rows], self.bias[rows])
        slopes, offsets = Tangents.of(pins, heads[rows], self.bids[rows], count)(query, k)
        return retrieval.search(steered(query, slopes, offsets), slopes, 4 * k, self.allowed)


def _pins(vectors: np.ndarray, bias: np.ndarray) -> Any:
    from indexing.index import Pins

    return Pins(vectors, bias)


def opened(directory: Path) -> Retrieval:
    return Retrieval.open(directory, num_heads=2, head_dim=HEAD_DIM)


@pytest.fixture(scope="module")
def schema(tower_schema: dict) -> FeatureSchema:
    return convert(tower_schema, FeatureSchema, source="schema")


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory, schema: FeatureSchema) -> Ads:
    return Ads(tmp_path_factory.mktemp("clustered"), schema, clustered=True)


@pytest.fixture(scope="module")
def both(clustered: Ads) -> tuple[RetrievalReport, Path, Path]:
    """What the build tells, the index in lists, and the flat one."""
    report, lists = clustered.build(ALL_LISTS)
    return report, lists, clustered.build(ALL_FLAT)[1]


def test_structure_is_used_and_the_recall_is_what_searches_find(clustered: Ads, both: Any) -> None:
    report, lists, flat = both
    for head, task in enumerate(("click", "conversion")):
        told = report.heads[task]
        assert told["kind"] == "ivf"
        assert told["ads"] == (clustered.heads == head).sum()
        assert told["lists"] == num_lists(told["ads"])
        assert 1 <= told["probes"] < told["lists"]
        assert told["scanned"] <= 0.25
    retrievals = {"chosen": opened(lists), "flat": opened(flat)}
    recalls = {
        name: np.mean(
            [
                np.isin(clustered.best(query, 100), clustered.found(retrieval, query, 100)).mean()
                for query in clustered.queries
            ]
        )
        for name, retrieval in retrievals.items()
    }
    assert report.recall["flat"] == pytest.approx(recalls["flat"], abs=1e-5)
    assert 0.99 <= report.recall["chosen"] <= recalls["chosen"] + 1e-5
    assert report.recall | {"flat": 0, "chosen": 0} == {"flat": 0, "chosen": 0, "best": 100, "requests": NUM_QUERIES}


def test_without_structure_groups_stay_flat(tmp_path: Path, schema: FeatureSchema) -> None:
    ads = Ads(tmp_path, schema, clustered=False)
    report, chosen = ads.build(ALL_LISTS)
    _, flat = ads.build(ALL_FLAT)
    assert {told["kind"] for told in report.heads.values()} == {"flat"}
    assert report.recall["chosen"] == report.recall["flat"]
    assert contents(chosen) == contents(flat)


def test_a_group_of_the_stated_size_stays_flat(clustered: Ads) -> None:
    sizes = [int((clustered.heads == head).sum()) for head in (0, 1)]
    report, _ = clustered.build(IndexConfig(flat_below=max(sizes)))
    assert {told["kind"] for told in report.heads.values()} == {"flat"}
    report, _ = clustered.build(IndexConfig(flat_below=min(sizes)))
    assert {told["kind"] for told in report.heads.values()} == {"flat", "ivf"}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_build_gives_the_same_bytes_again(clustered: Ads, both: Any, threads: int) -> None:
    report, again = clustered.build(IndexConfig(flat_below=0, threads=threads))
    assert report == both[0]
    assert contents(again) == contents(both[1])
    assert sorted(contents(again)) == ["head-0.faiss", "head-1.faiss", "impression-log-bids.npy", "impression.npy"]


@pytest.fixture(scope="module")
def exhaustive(both: Any) -> tuple[Retrieval, Retrieval]:
    """In lists, all of which are looked into; and flat."""
    _, lists, flat = both
    retrieval = opened(lists)
    for group in retrieval.groups.values():
        group.index.nprobe = group.index.nlist
    return retrieval, opened(flat)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.0005, 0.02, 0.2, 0.3, 0.9, 1.0]),
    k=st.sampled_from([1, 7, 400, 25_000]),
    weights=st.sampled_from([None, (1.0, 1.0), (0.3, 2.0), (0.0, 1.0)]),
)
def test_all_lists_find_what_scoring_each_ad_finds(
    clustered: Ads, exhaustive: Any, seed: int, share: float, k: int, weights: Any
) -> None:
    rng = np.random.default_rng(seed)
    query, allowed = clustered.queries[seed % NUM_QUERIES], rng.random(NUM_ADS) < share
    slopes = np.array([1.0, 1.0] if weights is None else [*weights])
    paid = clustered.heads != IMPRESSION
    slope = np.where(paid, np.r_[slopes, 0][clustered.heads], 0)
    scores = log_bid(clustered.bids) + slope * clustered.logits(query)
    scores[~allowed | (paid & (slope == 0))] = -np.inf
    expected = np.sort(scores[np.isfinite(scores)])[::-1][:k]
    for retrieval in exhaustive:
        found = retrieval.search(query, None if weights is None else slopes, k, None if share == 1.0 else allowed)
        assert len(set(found.tolist())) == len(found) == len(expected)
        np.testing.assert_allclose(scores[found], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_lists_keep_what_they_find_under_a_filter(clustered: Ads, both: Any, share: float) -> None:
    lists, flat = opened(both[1]), opened(both[2])
    allowed = np.random.default_rng(3).random(NUM_ADS) < share
    kept = []
    for query in clustered.queries:
        expected = flat.search(query, None, 50, allowed)
        found = lists.search(query, None, 50, allowed)
        assert allowed[found].all()
        assert len(found) == len(expected)
        kept.append(np.isin(expected, found).mean())
    assert np.mean(kept) >= 0.97


def test_a_search_of_too_few_lists_looks_into_all(clustered: Ads, both: Any) -> None:
    found = opened(both[1]).search(clustered.queries[0], None, NUM_ADS, None)
    assert sorted(found.tolist()) == list(range(NUM_ADS))


def test_needed_lists_are_the_quantile_of_the_ranks() -> None:
    ranks = ListRanks.of(np.array([[1.0], [-1.0]]), np.array([[3.0], [2.0], [1.0]]), np.array([10, 20, 70]))
    assert ranks.order.tolist() == [[0, 1, 2], [2, 1, 0]]
    lists = np.array([[0, 0, 1, -1], [2, 0, -1, -1]])  # ranks 0, 0, 1 and 0, 2
    assert [ranks.needed(lists, recall) for recall in (0.5, 0.6, 0.61, 0.8, 0.81, 1.0)] == [1, 1, 2, 2, 3, 3]
    assert ranks.needed(np.full((2, 3), -1), 0.5) == 3
    assert ranks.scanned(1) == pytest.approx((10 + 70) / 2 / 100 + 3 / 100)


def test_the_sample_of_a_large_group_is_spread_over_it(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import indexing.retrieval_lists as lists

    group = opened(both[2]).groups[0]
    rows = FlatRows(both[2] / "head-0.faiss", len(group), HEAD_DIM + 2)
    sample = lists._sample(rows, 320)
    everything = rows.read(0, len(group))
    places = [int(np.flatnonzero((everything == row).all(axis=1))[0]) for row in sample]
    assert len(set(places)) == 320
    assert np.diff(np.histogram(places, 4, (0, len(group)))[0]).max() <= 16
    assert train_lists(rows).shape == (num_lists(len(group)), HEAD_DIM + 2)


def _damaged(path: Path, to: Path, content: bytes) -> Callable[[], Retrieval]:
    for file in path.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    (to / "head-0.faiss").write_bytes(content)
    return lambda: opened(to)


def test_damaged_lists_are_refused_and_never_end_the_process(both: Any, tmp_path: Path, clustered: Ads) -> None:
    content = (both[1] / "head-0.faiss").read_bytes()
    lists = opened(both[1]).groups[0].index.nlist
    begin = 53 + 45 + 4 * lists * (HEAD_DIM + 2)  # up to the centroids, roughly
    end = content.index(b"ilar") + 32 + 8 * lists
    rng = np.random.default_rng(0)
    for at in [*range(0, 98), *rng.integers(begin, end, 60).tolist(), *rng.integers(end, len(content), 20).tolist()]:
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(0, 8))
        try:
            retrieval = _damaged(both[1], tmp_path, bytes(flipped))()
        except ArtifactError:
            continue
        retrieval.search(clustered.queries[0], None, 50, None)  # what a checksum alone can find
    for length in [0, 3, 10, 60, 400, end - 1, end, len(content) // 2, len(content) - 1]:
        with pytest.raises(ArtifactError, match=r"head-0\.faiss: not a retrieval group"):
            _damaged(both[1], tmp_path, content[:length])()
    with pytest.raises(ArtifactError, match=r"bytes, expected"):
        _damaged(both[1], tmp_path, content + b"\0")()
    for wrong in (0, lists + 1):
        _damaged(both[1], tmp_path, content)
        set_probes(tmp_path / "head-0.faiss", wrong)
        with pytest.raises(ArtifactError, match=rf"{wrong} of {lists} lists are to be searched"):
            opened(tmp_path)
