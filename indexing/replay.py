"""Replays saved requests against bundles and an index that shall be released: what would a caller notice?

The light stage is done as the service does it, request by request: the query tower, the dot products with the index's
own vectors, bid times the probability of what the ad's objective pays for. Reading an index this way is also the last
proof that it opens, and that its bundles reproduce the trained models. Shapes: C candidates, P those that are ranked,
H heads, K survivors, T tasks of the heavy ranker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from contracts.bundle import PARITY_FILE, Bundle
from contracts.errors import ArtifactError, RequestError
from contracts.probability import sigmoid
from contracts.records import STATUSES
from contracts.rows import encode_request
from contracts.utility import ObjectiveColumns, top_positions
from indexing.index import Index
from indexing.replay_requests import SavedRequest, saved_requests
from towers.serving import TwoTowerServing, score

ACTIVE = STATUSES.index("active")
POOL_SHARE = 4
"""At most one in so many candidates survives in a replay, so that an overlap says something of short lists too."""


@dataclass(frozen=True, kw_only=True)
class LightRanking:
    """One request, ranked. ``positions`` [P] are places in the request, ``rows`` [P] of the index."""

    positions: np.ndarray
    rows: np.ndarray
    probabilities: np.ndarray
    utilities: np.ndarray
    unknown: int
    inactive: int

    def top(self, request: SavedRequest, k: int) -> set[str]:
        """The ids of the ``k`` ads of largest utility, fewer where fewer are ranked."""
        return {request.ids[self.positions[place]] for place in top_positions(self.utilities, k)}


class LightReplay:
    """The light stage of a release.

    Args:
        bundle: Two-tower bundle, verified.
        index: That was built with it.
        threads: Of one graph.

    Raises:
        ArtifactError: The graphs do not reproduce the trained model.
    """

    def __init__(self, bundle: Bundle, index: Index, *, threads: int = 2) -> None:
        self.bundle, self.index = bundle, index
        self.tasks = bundle.schema.tasks
        self._tower = TwoTowerServing.load(bundle, threads=threads)
        self._tower.check_parity(bundle.tensors(PARITY_FILE), source=str(bundle.path))
        self._objectives = ObjectiveColumns(bundle.schema.objectives, self.tasks)
        self._index_objectives = self._objectives.from_other(index.manifest.objectives)

    @property
    def query_features(self) -> frozenset[str]:
        """Names of what the query tower reads."""
        return frozenset(self._tower.query_encoder.features)

    def rank(self, request: SavedRequest) -> LightRanking:
        """Rank the candidates of one request under the service's default policies.

        Raises:
            ArtifactError: A value of the request cannot be encoded.
        """
        try:
            query, _ = encode_request(self._tower.query_encoder, request.query, event_time_us=request.event_time_us)
        except RequestError as error:
            raise ArtifactError(f"{request.source}: {error}") from error
        rows = self.index.id_table.lookup(request.ids)
        known = np.flatnonzero(rows >= 0)
        positions = known[self.index.status[rows[known]] == ACTIVE]
        inactive = len(known) - len(positions)
        positions, bids = _with_bids(positions, request.bids[positions], self.index.bids[rows[positions]])
        pins = self.index.pins.take(rows[positions])
        logits = score(self._tower.embed_query(query)[0], pins.vectors, pins.bias, pins.scales)
        probabilities = sigmoid(logits)
        codes = self._codes(request, positions, rows[positions])
        return LightRanking(
            positions=positions,
            rows=rows[positions],
            probabilities=probabilities,
            utilities=bids * self._objectives.probability(probabilities, codes),
            unknown=len(rows) - len(known),
            inactive=inactive,
        )

    def _codes(self, request: SavedRequest, positions: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Objectives of ranked ads: the request's, else the index's, else the default."""
        codes = self._index_objectives[self.index.objectives[rows]]
        if request.objectives is None:
            return codes
        names = [request.objectives[place] for place in positions]
        unknown = set(names) - set(self._objectives.codes) - {None}
        if unknown:
            raise ArtifactError(f"{request.source}: unknown objectives {sorted(map(str, unknown))}")
        given = np.array([-1 if name is None else self._objectives.codes[name] for name in names], np.intp)
        return np.where(given >= 0, given, codes)


def _with_bids(positions: np.ndarray, given: np.ndarray, stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bids of the request, else of the index; without a usable one an ad drops out, but where none has any, all are 1.

    Returns:
        The positions that are left, and their bids.
    """
    bids = np.where(np.isnan(given), stored, given)
    valid = np.isnan(bids) | (np.isfinite(bids) & (bids >= 0))
    positions, bids = positions[valid], bids[valid]
    if np.isnan(bids).all():
        return positions, np.ones(len(bids))
    return positions[~np.isnan(bids)], bids[~np.isnan(bids)]


@dataclass
class Sums:
    """Probabilities of two models on the same pairs, summed by head."""

    pairs: int = 0
    ours: dict[str, float] = field(default_factory=dict)
    theirs: dict[str, float] = field(default_factory=dict)

    def add(self, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
        """Add the pairs of one request, by head; heads that one of them lacks are left out."""
        for task in ours:
            if task in theirs:
                self.ours[task] = self.ours.get(task, 0.0) + float(ours[task].sum())
                self.theirs[task] = self.theirs.get(task, 0.0) + float(theirs[task].sum())
        self.pairs += len(next(iter(ours.values()), ()))

    def ratios(self, name: str) -> dict[str, float]:
        """Ours over theirs, as ``name.<head>``; nothing where no pair was compared."""
        return {f"{name}.{task}": self.ours[task] / self.theirs[task] for task in self.ours if self.theirs[task] != 0}


def by_task(tasks: Sequence[str], probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of [P, H] by head."""
    return {task: probabilities[:, place] for place, task in enumerate(tasks)}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a replay found; ``metrics`` as a release keeps them, ``skipped`` what it could not measure and why."""

    metrics: dict[str, float]
    skipped: list[str]


def replay_light(candidate: LightReplay, current: LightReplay | None, *, survivors: int) -> Replay:
    """Replay the saved requests of the candidate's bundle.

    ``unknown_share`` of the requests' candidates are not in the index; ``inactive_share`` of those that are, are not
    active. ``overlap`` is the mean share of the survivors that the current release has chosen too, where each ranks
    what its own index holds; K is ``survivors``, or a quarter of the list where that is less. ``calibration_current``
    is, by head, the sum of the candidate's probabilities over that of the current release's on the same pairs.

    Args:
        candidate: What shall be released.
        current: What serves now; None before the first release.
        survivors: K at most.

    Raises:
        ArtifactError: A saved request cannot be replayed.
    """
    requests = saved_requests(candidate.bundle, candidate.index.scenario)
    counts = {"candidates": 0, "unknown": 0, "inactive": 0, "not_finite": 0}
    overlaps, sums = [], Sums()
    for request in requests:
        ours = candidate.rank(request)
        counts["candidates"] += len(request.ids)
        counts["unknown"] += ours.unknown
        counts["inactive"] += ours.inactive
        counts["not_finite"] += int((~np.isfinite(ours.probabilities)).any(axis=1).sum())
        if current is None:
            continue
        theirs = current.rank(request)
        _, mine, other = np.intersect1d(ours.positions, theirs.positions, return_indices=True)
        sums.add(
            by_task(candidate.tasks, ours.probabilities[mine]), by_task(current.tasks, theirs.probabilities[other])
        )
        k = min(survivors, min(len(ours.positions), len(theirs.positions)) // POOL_SHARE)
        if k:
            overlaps.append(len(ours.top(request, k) & theirs.top(request, k)) / k)
    known = counts["candidates"] - counts["unknown"]
    metrics = {
        "requests": float(len(requests)),
        "candidates": float(counts["candidates"]),
        "not_finite": float(counts["not_finite"]),
        "unknown_share": counts["unknown"] / max(counts["candidates"], 1),
        "inactive_share": counts["inactive"] / max(known, 1),
        **sums.ratios("calibration_current"),
    }
    if overlaps:
        metrics |= {"overlap": float(np.mean(overlaps)), "overlap_requests": float(len(overlaps))}
    skipped = [] if current is None or overlaps else [f"overlap (no request has {POOL_SHARE} ads that both rank)"]
    return Replay(metrics=metrics, skipped=skipped)
