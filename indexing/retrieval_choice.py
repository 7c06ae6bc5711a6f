"""Which groups of ads are divided into lists, and how many lists a search looks into.

A group of more ads than a size is divided, and a search looks into as many lists as keep a share of the best ads of
the bundle's saved requests by exact utility. The division is kept where it spares a search enough: of a catalogue
without structure nearly all lists would have to be looked into, and the group stays flat.

One pass over each group gives, for each request, its best ads by exact utility, and those that an exhaustive search
fetches. A best ad counts as found where it is fetched and its list is looked into: a search of some lists fetches all
that an exhaustive one does and that are in them. So the recall is a count, no search is run, and the same catalogue
always gives the same files; ``benchmarks.retrieval_recall`` runs and times the searches.

Shapes: A ads, N of a group, L lists, R requests, H heads, D width of a head's vector.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexing.arrays import create_mapped, map_array, release_pages
from indexing.config import IndexConfig
from indexing.retrieval_files import ROWS, FlatRows, set_probes, write_lists
from indexing.retrieval_lists import MIN_LISTS, Assignment, ListRanks, one_thread, train_lists
from indexing.retrieval_truth import Best, Scored, by_search, by_utility, logits_of
from indexing.tangent import Tangents

MAX_REQUESTS = 64
"""Saved requests that recall is measured with."""
WANTED, OVERFETCH = 100, 4.0
"""Best ads that are counted, and how many are fetched for each: what the service does unless it is told otherwise."""
MAX_SCANNED = 0.25
"""A division is kept where a search compares at most this share of the ads: one in a list costs more than one in a flat
group."""


@dataclass(frozen=True)
class Judge:
    """Requests that searches are judged by, as the service would search for them.

    Args:
        queries: Query embeddings [R, H, D+2].
        weights, offsets: Of the tangents [R, H].
        allowed: Which of some rows of the index may be found.
    """

    queries: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray
    allowed: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(cls, queries: np.ndarray, tangents: Tangents, allowed: Callable[[np.ndarray], np.ndarray]) -> "Judge":
        """Judge by at most ``MAX_REQUESTS`` of these."""
        queries = queries[:MAX_REQUESTS]
        weights, offsets = (
            np.stack(part) for part in zip(*(tangents(query, WANTED) for query in queries), strict=True)
        )
        return cls(queries, weights, offsets, allowed)

    def asked(self, head: int) -> np.ndarray:
        """What the requests search the group of a head with, float32 [R, D+2]."""
        weighted = self.weights[:, head, None] * self.queries[:, head, :-1]
        return np.c_[weighted, np.ones(len(weighted))].astype(np.float32)

    def best(self) -> Best:
        """For the best ads by exact utility."""
        return Best(len(self.queries), WANTED)

    def fetched(self) -> Best:
        """For the ads that a search fetches."""
        return Best(len(self.queries), math.ceil(WANTED * OVERFETCH))


def choose(
    directory: Path, judge: Judge, config: IndexConfig, *, dim: int
) -> tuple[dict[int, dict[str, Any]], dict[str, float]]:
    """Divide the flat groups of ``directory`` where it pays.

    Args:
        dim: D + 2.

    Returns:
        By head that was divided, what the manifest tells of it; and the recall of the whole index.
    """
    best, fetched = judge.best(), judge.fetched()
    _take_impressions(directory, judge, best, fetched)
    with ThreadPoolExecutor(config.threads, initializer=one_thread) as pool:
        groups = [_Group(directory, head, dim, judge, config, pool) for head in range(judge.queries.shape[1])]
        for group in groups:
            group.begin()
        for group in groups:
            group.scan(best, fetched)
    found = np.stack([np.isin(*pair) for pair in zip(best.ads, fetched.ads, strict=True)]) & (best.ads >= 0)
    recalls = {"flat": _share(found, best), "chosen": _share(_looked_into(groups, best, found), best)}
    while recalls["chosen"] < min(recalls["flat"], config.retrieval_recall):
        for group in groups:
            group.widen()
        recalls["chosen"] = _share(_looked_into(groups, best, found), best)
    divided = [group for group in groups if group.probes]
    with ThreadPoolExecutor(config.threads) as pool:
        told = {group.head: told for group, told in zip(divided, pool.map(_Group.write, divided), strict=True)}
    for group in groups:
        group.tidy()
    kept = {name: round(recall, 5) for name, recall in recalls.items() if not math.isnan(recall)}
    return told, {**kept, "best": WANTED, "requests": len(judge.queries)}


def _share(found: np.ndarray, best: Best) -> float:
    """Share of the best ads that are found; NaN where there is no ad."""
    count = np.count_nonzero(best.ads >= 0)
    return float(np.count_nonzero(found) / count) if count else float("nan")


def _looked_into(groups: "list[_Group]", best: Best, found: np.ndarray) -> np.ndarray:
    """Which of the found ads [R, K] are not in a list that is left out."""
    return found & ~np.logical_or.reduce([group.left_out(best.ads) for group in groups])


def _take_impressions(directory: Path, judge: Judge, best: Best, fetched: Best) -> None:
    """Keep the ads that pay for the impression: the highest bids, as far as they may be found."""
    rows, log_bids = (map_array(directory / f"impression{part}.npy") for part in ("", "-log-bids"))
    wanted = fetched.ads.shape[1]
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        mine = np.flatnonzero(judge.allowed(rows[part]))[:wanted] + start
        for kept in (best, fetched):
            kept.keep_for_all(rows[mine].astype(np.int64), log_bids[mine].astype(np.float64))
        wanted -= len(mine)
        if wanted <= 0:
            break


class _Group:
    """The group of one head. ``probes`` is how many lists a search looks into, 0 where it stays flat."""

    def __init__(
        self, directory: Path, head: int, dim: int, judge: Judge, config: IndexConfig, pool: ThreadPoolExecutor
    ) -> None:
        self.head, self.probes = head, 0
        self._path, self._written = directory / f"head-{head}.faiss", directory / f".head-{head}.lists"
        self._rows_path, self._lists_path = directory / f"head-{head}.npy", directory / f".head-{head}.npy"
        self._rows = map_array(self._rows_path)
        self._flat = FlatRows(self._path, len(self._rows), dim)
        self._judge, self._config, self._pool = judge, config, pool
        self._lists: np.ndarray | None = None
        self._ranks: ListRanks | None = None
        self._centroids = np.zeros((0, dim), np.float32)
        self._training: Future[np.ndarray] | None = None

    def begin(self) -> None:
        """Begin to train lists if the group is large; the groups' trainings run side by side."""
        if len(self._rows) > max(self._config.flat_below, MIN_LISTS):  # fewer could not fill the lists
            self._training = self._pool.submit(train_lists, self._flat)

    def scan(self, best: Best, fetched: Best) -> None:
        """Read the group: its best ads, those that are fetched, and, if it is large, how many lists it takes."""
        own = self._judge.best(), self._judge.fetched()
        assignment = None
        if self._training is not None:
            self._centroids = self._training.result()
            self._lists = create_mapped(self._lists_path, np.int32, (len(self._rows),))
            assignment = Assignment(self._centroids)
        for part in self._pool.map(lambda start: self._piece(start, *own, assignment), self._flat.starts()):
            for kept, scored in zip(own, part, strict=True):
                kept.keep(scored)
        for whole, kept in zip((best, fetched), own, strict=True):
            whole.keep_from(kept, self._rows)
        if self._lists is not None:
            self._rank(own[0], self._lists)

    def _piece(self, start: int, best: Best, fetched: Best, assignment: Assignment | None) -> tuple[Scored, Scored]:
        judge, head = self._judge, self.head
        part = slice(start, min(start + ROWS, len(self._rows)))
        vectors = self._flat.read(part.start, part.stop)
        if assignment is not None and self._lists is not None:
            self._lists[part] = assignment(vectors)
        mine = np.flatnonzero(judge.allowed(self._rows[part]))
        vectors, queries, weights = vectors[mine], judge.queries[:, head], judge.weights[:, head]
        logits, log_bids = logits_of(vectors[:, :-1], queries), vectors[:, -1]
        release_pages(self._rows, self._lists)
        return (
            by_utility(best, logits, log_bids, mine + start),
            by_search(fetched, logits, log_bids, mine + start, weights, judge.offsets[:, head]),
        )

    def _rank(self, best: Best, lists: np.ndarray) -> None:
        sizes = np.zeros(len(self._centroids), np.int64)
        for start in self._flat.starts():
            sizes += np.bincount(lists[start : start + ROWS], minlength=len(sizes))
        self._ranks = ListRanks.of(self._judge.asked(self.head), self._centroids, sizes)
        needed = self._ranks.needed(np.where(best.ads >= 0, lists[best.ads], -1), self._config.retrieval_recall)
        self._set(needed)

    def _set(self, probes: int) -> None:
        self.probes = probes if self._ranks is not None and self._ranks.scanned(probes) <= MAX_SCANNED else 0

    def widen(self) -> None:
        """Look into twice as many lists; the group is flat where these are too many."""
        self._set(2 * self.probes)

    def left_out(self, ads: np.ndarray) -> np.ndarray:
        """Which ads [R, K], by their rows in the index, are in a list of this group that a search leaves out."""
        if not self.probes or self._ranks is None or self._lists is None:
            return np.zeros(ads.shape, bool)
        places = np.minimum(np.searchsorted(self._rows, ads), len(self._rows) - 1)
        mine = (self._rows[places] == ads) & (ads >= 0)
        return mine & (self._ranks.ranks(np.where(mine, self._lists[places], 0)) >= self.probes)

    def write(self) -> dict[str, Any]:
        """Put lists in the place of the flat group; what the manifest tells of them."""
        if self._ranks is None or self._lists is None:
            raise ValueError(f"head {self.head}: was not divided")
        write_lists(self._written, self._flat, self._rows, self._lists, self._centroids)
        set_probes(self._written, self.probes)
        os.replace(self._written, self._path)
        self._rows_path.unlink()
        scanned = round(self._ranks.scanned(self.probes), 4)
        return {"kind": "ivf", "lists": len(self._centroids), "probes": self.probes, "scanned": scanned}

    def tidy(self) -> None:
        """Remove what is not part of the index."""
        self._lists_path.unlink(missing_ok=True)
