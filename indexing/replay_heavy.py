"""The heavy ranker in a replay: whether the light stage predicts what the heavy stage will.

Shapes: P ranked ads of a request, T tasks.
"""

from collections.abc import Iterable

import numpy as np

from contracts.bundle import PARITY_FILE, Bundle
from contracts.errors import ArtifactError, RequestError
from contracts.probability import sigmoid
from contracts.rows import encode_pairs, encode_request
from heavy_ranker.serving import HeavyServing
from indexing.replay import LightReplay, Replay, Sums, by_task
from indexing.replay_requests import SavedRequest, saved_requests


class HeavyReplay:
    """The heavy ranker of a release.

    Args:
        bundle: Heavy bundle, verified.
        threads: Of one graph.

    Raises:
        ArtifactError: The graphs do not reproduce the trained model.
    """

    def __init__(self, bundle: Bundle, *, threads: int = 2) -> None:
        self.bundle = bundle
        self._serving = HeavyServing.load(bundle, threads=threads)
        self._serving.check_parity(bundle.tensors(PARITY_FILE), source=str(bundle.path))

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._serving.tasks

    @property
    def query_features(self) -> frozenset[str]:
        """Names of what the request side reads."""
        return frozenset(self._serving.query_encoder.features)

    @property
    def pair_features(self) -> frozenset[str]:
        """Names of what it reads of a pair of request and ad."""
        return frozenset(self._serving.pair_encoder.features) if self._serving.pair_encoder else frozenset()

    def probabilities(self, light: LightReplay, request: SavedRequest, rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Probabilities [P, T] of ads by ``rows`` of the index and their places ``at`` in the request."""
        block, serving = light.index.heavy_ads, self._serving
        if block is None:
            raise ArtifactError(f"{light.index.path}: has no block for a heavy ranker")
        try:
            query, _ = encode_request(serving.query_encoder, request.query, event_time_us=request.event_time_us)
            pair = None
            if serving.pair_encoder is not None:
                pair = encode_pairs(serving.pair_encoder, request.pair, len(request.ids)).encoded.take(at)
        except RequestError as error:
            raise ArtifactError(f"{request.source}: {error}") from error
        state = serving.encode_request(query)
        return sigmoid(serving.score(state, block.take(rows), pair, np.zeros(len(rows), np.int64)))


def replay_heavy(light: LightReplay, heavy: HeavyReplay, *, min_requests: int) -> Replay:
    """``calibration_heavy``, by head: the sum of the light probabilities over that of the heavy ones, on equal pairs.

    The requests are the heavy bundle's own of the scenario, since the towers' need not hold all that a heavy ranker
    reads; without such the two-tower bundle's. A feature that no request holds makes the ratio meaningless, so that it
    is not measured.

    Raises:
        ArtifactError: A saved request cannot be replayed.
    """
    requests = saved_requests(heavy.bundle, light.index.scenario)
    requests = requests or saved_requests(light.bundle, light.index.scenario)
    if len(requests) < min_requests:
        return Replay(metrics={}, skipped=[f"calibration_heavy ({len(requests)} of {min_requests} saved requests)"])
    lacking = _lacking(light.query_features | heavy.query_features, (request.query for request in requests))
    lacking += _lacking(heavy.pair_features, (request.pair for request in requests))
    if lacking:
        return Replay(metrics={}, skipped=[f"calibration_heavy (no saved request has {', '.join(lacking)})"])
    sums = Sums()
    for request in requests:
        ranked = light.rank(request)
        if len(ranked.rows):
            theirs = heavy.probabilities(light, request, ranked.rows, ranked.positions)
            sums.add(by_task(light.tasks, ranked.probabilities), by_task(heavy.tasks, theirs))
    if not sums.pairs:
        return Replay(metrics={}, skipped=["calibration_heavy (the index holds no candidate of the saved requests)"])
    return Replay(metrics=sums.ratios("calibration_heavy"), skipped=[])


def _lacking(names: frozenset[str], given: Iterable[dict]) -> list[str]:
    return sorted(names - {name for one in given for name in one})
