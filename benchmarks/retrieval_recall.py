"""Requests without candidates: what a search finds of the best ads by exact utility, and how long it takes.

Indexes of 1e5 and 1e6 ads, of clustered vectors and of structureless ones (``benchmarks.retrieval_setup``), each built
twice: as ``adsieve index build`` chooses from 32 requests, and with flat groups only. 32 other requests ask for the 100
best ads, fetching 400, as the service does: the tangent, the search, nothing after it. Recall is against the exhaustive
order by utility, ad by ad in double precision, of the ads that may be found: all that are active, and random shares of
them. The two indexes are searched in blocks by turns, one thread, files mapped and in memory; a time is the median of a
block, the ratio the median over blocks.

``--bundle BUNDLE --ads ADS`` adds an index of real towers: built in lists whatever its size, and flat.
"""

import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, cast

import faiss
import numpy as np

from benchmarks.harness import Target, finish, parser
from benchmarks.retrieval_setup import HEAD_DIM, NUM_HEADS, SCHEMA, World, write_blocks
from contracts.bundle import open_bundle
from contracts.config import convert
from contracts.release import IndexManifest
from contracts.schema import FeatureSchema
from contracts.utility import ObjectiveColumns, top_positions
from indexing.blocks import objective_heads
from indexing.config import IndexConfig
from indexing.index import Index, Pins
from indexing.live import LiveIndex
from indexing.nightly import build_index
from indexing.retrieval import IMPRESSION, Retrieval, log_bid
from indexing.retrieval_build import build_retrieval
from indexing.retriever import Retriever
from indexing.saved_queries import saved_query_embeddings
from towers.serving import TwoTowerServing, score

SIZES = (100_000, 1_000_000)
BUILD_REQUESTS, REQUESTS = 32, 32
WANTED, FETCHED = 100, 400
SHARES = (1.0, 0.5, 0.1, 0.01)
"""Of the active ads, how many a filter leaves."""
BLOCKS = 5
RECALL, RATIO = 0.99, 1.05
ALWAYS_FLAT = 10_000_000_000


def main() -> int:
    """Measure every index and print the figures beside the targets."""
    options = parser(__doc__)
    options.add_argument("--bundle", type=Path, help="a two-tower bundle")
    options.add_argument("--ads", help="its ads dataset")
    chosen = options.parse_args()
    faiss.omp_set_num_threads(1)
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as directory:
        for clustered in (True, False):
            for num_ads in SIZES:
                label = f"{num_ads:.0e} {'clustered' if clustered else 'structureless'}"
                world = World(clustered=clustered)
                searches, found = _built(Path(directory) / label, world, num_ads)
                figures |= {f"{label}: {name}": value for name, value in found.items()}
                of_searches, of_targets = measure(
                    searches, convert(SCHEMA, FeatureSchema, source="schema"), world.queries(REQUESTS), label
                )
                figures |= of_searches
                targets += of_targets
        if chosen.bundle is not None and chosen.ads is not None:
            of_towers, of_targets = _real(Path(directory), chosen.bundle, chosen.ads)
            figures |= of_towers
            targets += of_targets
    return finish(chosen, figures, targets)


def _built(directory: Path, world: World, num_ads: int) -> tuple[dict[str, Retriever], dict[str, Any]]:
    """Both indexes of one world, and what building their retrieval took and told."""
    schema, queries = write_blocks(directory, world, num_ads), world.queries(BUILD_REQUESTS)
    searches, told = {}, {}
    for name, flat_below in (("flat", ALWAYS_FLAT), ("chosen", IndexConfig().flat_below)):
        start = time.perf_counter()
        report = build_retrieval(
            directory, schema, head_dim=HEAD_DIM, queries=queries, config=IndexConfig(flat_below=flat_below)
        )
        told[f"{name}, seconds to build"] = time.perf_counter() - start
        (directory / "retrieval").rename(directory / name)
        searches[name] = _retriever(_index(directory, name, schema, num_ads), schema)
    told |= {"recall told by the build": report.recall["chosen"]}
    told |= {f"{head}, {key}": value for head, of_head in report.heads.items() for key, value in of_head.items()}
    return searches, told


def _index(directory: Path, name: str, schema: FeatureSchema, num_ads: int) -> Index:
    """An index of these blocks; a search needs neither ids nor advertisers."""
    columns = {name: np.load(directory / f"{name}.npy") for name in ("vectors", "bias", "status", "bids", "objectives")}
    manifest = cast(IndexManifest, _Manifest(num_ads, schema))
    return Index(
        path=directory,
        manifest=manifest,
        id_table=cast(Any, None),
        advertiser_ids=cast(Any, None),
        valid_from=np.zeros(0, np.int64),
        advertisers=np.zeros(0, np.int32),
        heavy_ads=None,
        retrieval=Retrieval.open(directory / name, num_heads=NUM_HEADS, head_dim=HEAD_DIM),
        **columns,
    )


class _Manifest:
    """What a search reads of a manifest."""

    def __init__(self, num_ads: int, schema: FeatureSchema) -> None:
        self.num_ads, self.objectives = num_ads, list(schema.objective_names)


def _retriever(index: Index, schema: FeatureSchema) -> Retriever:
    objectives = ObjectiveColumns(schema.objectives, schema.tasks)
    return Retriever(LiveIndex(index, schema), objectives, objectives.from_other(index.manifest.objectives))


def measure(
    searches: Mapping[str, Retriever], schema: FeatureSchema, queries: np.ndarray, label: str
) -> tuple[dict[str, Any], list[Target]]:
    """Recall and time of both indexes under every filter."""
    live = searches["flat"].live
    active, draw = live.allowed(with_bid=True), np.random.default_rng(1).random(live.num_rows)
    if active is None:
        raise ValueError("expected a filter of active ads")
    filters = {f"{label}, {share:.0%} allowed": active & (draw < share) for share in SHARES}
    figures: dict[str, Any] = {}
    targets = []
    for (case, allowed), best in zip(filters.items(), exact_best(live, schema, queries, filters.values()), strict=True):
        for name, search in searches.items():
            found = [search.rows(query, WANTED, FETCHED, allowed) for query in queries]
            recall = float(np.mean([np.isin(mine, rows).mean() for mine, rows in zip(best, found, strict=True)]))
            figures[f"{case}: recall, {name}"] = recall
        blocks = [
            {name: _block_ms(search, queries, allowed) for name, search in searches.items()} for _ in range(BLOCKS)
        ]
        for name in searches:
            figures[f"{case}: ms, {name}"] = median(block[name] for block in blocks)
        ratio = median(block["chosen"] / block["flat"] for block in blocks)
        targets.append(Target(f"{case}: recall", figures[f"{case}: recall, chosen"], at_least=RECALL))
        targets.append(Target(f"{case}: time, chosen / flat", ratio, at_most=RATIO))
    return figures, targets


def _block_ms(search: Retriever, queries: np.ndarray, allowed: np.ndarray) -> float:
    """Median time of a request."""
    times = []
    for query in queries:
        start = time.perf_counter()
        search.rows(query, WANTED, FETCHED, allowed)
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def exact_best(
    live: LiveIndex, schema: FeatureSchema, queries: np.ndarray, filters: Iterable[np.ndarray]
) -> list[list[np.ndarray]]:
    """For each filter and query, rows of the best ads by exact utility, by scoring each."""
    masks, pins, rows = list(filters), live.index.pins, np.arange(live.num_rows)
    exact = Pins(pins.vectors.astype(np.float32), pins.bias, pins.scales)
    heads = np.array([*objective_heads(schema), 0])[live.objectives(rows)]
    paid, log_bids = np.flatnonzero(heads != IMPRESSION), log_bid(live.bids(rows)).astype(np.float64)
    best: list[list[np.ndarray]] = [[] for _ in masks]
    for query in queries:
        logits = score(query, exact.vectors, exact.bias, exact.scales).astype(np.float64)
        utilities = log_bids.copy()
        utilities[paid] -= np.logaddexp(0, -logits[paid, heads[paid]])
        for mine, mask in zip(best, masks, strict=True):
            mine.append(top_positions(np.where(mask, utilities, -np.inf), min(WANTED, int(np.count_nonzero(mask)))))
    return best


def _real(directory: Path, bundle_path: Path, ads: str) -> tuple[dict[str, Any], list[Target]]:
    """An index of a trained bundle; the second half of its saved requests is searched for."""
    bundle, searches = open_bundle(bundle_path, kind="two_tower"), {}
    for name, flat_below in (("flat", ALWAYS_FLAT), ("chosen", 0)):
        out = directory / f"real-{name}"
        build_index(ads=ads, two_tower=bundle_path, heavy=None, out=out, config=IndexConfig(flat_below=flat_below))
        searches[name] = _retriever(Index.open(out), bundle.schema)
    queries = saved_query_embeddings(bundle, TwoTowerServing.load(bundle, threads=1))
    told = Index.open(out).manifest
    figures, targets = measure(searches, bundle.schema, queries, f"real towers, {told.num_ads} ads")
    of_heads = {
        f"real towers: {head}, {key}": value for head, of in told.retrieval.items() for key, value in of.items()
    }
    return figures | of_heads, targets


if __name__ == "__main__":
    raise SystemExit(main())
