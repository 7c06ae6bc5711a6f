"""Every system must give the answer of a slow reference: the same ids in the same order, up to ties.

The reference scores all candidates with the plain light stage and, for the full stage, the survivors with eager PyTorch
in fp32. An answer may differ where two utilities are closer than what the systems' arithmetic may round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import numpy as np

from benchmarks.serving_naive_model import heavy_probabilities, naive_heavy
from benchmarks.serving_plain import ANSWERED, PlainRanker, best
from benchmarks.serving_processes import Server
from benchmarks.serving_requests import EVENT_TIME
from benchmarks.serving_systems import ADSIEVE, FLOOR, NAIVE, TRITON
from benchmarks.serving_world import World
from contracts.bundle import open_bundle
from contracts.encoding import Encoded
from engines.parity import BF16_GATE

FP32_TOLERANCE, BF16_TOLERANCE = 2e-5, 2 * BF16_GATE.tolerance
"""Of a probability. adsieve may choose an engine in BF16, whose gate holds for two ads that are compared."""
NEAR_SURVIVORS = 30
"""Ads behind the last survivor that the reference also scores: they may take its place in a tie."""
LENGTH_BYTES = 4


class DifferentAnswerError(Exception):
    """A system ranks otherwise than the reference: what it does in less time would mean nothing."""


@dataclass(frozen=True)
class Expected:
    """Utilities of all ads that may be answered, their bids, and how many are answered.

    ``light`` are the utilities that the survivors of a full stage are chosen by, None for the light stage.
    """

    utilities: Mapping[str, float]
    bids: Mapping[str, float]
    count: int
    light: Mapping[str, float] | None


class Reference:
    """Answers of one world, computed slowly."""

    def __init__(self, world: World) -> None:
        self._plain = PlainRanker(world.plain)
        self._heavy = None
        if world.heavy is not None:
            bundle = open_bundle(world.heavy)
            self._heavy, self._num_pair = naive_heavy(bundle), len(bundle.schema.side_features("pair"))
            self._ads = Encoded(*(np.load(world.plain / f"heavy_{part}.npy", "r") for part in ("ids", "floats")))

    def __call__(self, body: Mapping[str, Any]) -> Expected:
        """What a body must be answered with."""
        ids, bids = np.array(body["candidates"]["ids"]), np.array(body["candidates"]["bids"])
        places, utilities, _ = self._plain.score(dict(body))
        light = None
        if body["stage"] == "full":
            near = best(utilities, ANSWERED + NEAR_SURVIVORS)
            light = dict(zip(ids[places[near]].tolist(), utilities[near].tolist(), strict=True))
            places, utilities = places[near], self._full(body, ids[places[near]], bids[places[near]])
        names = ids[places].tolist()
        return Expected(
            utilities=dict(zip(names, utilities.tolist(), strict=True)),
            bids=dict(zip(names, bids[places].tolist(), strict=True)),
            count=min(ANSWERED, len(names)),
            light=light,
        )

    def _full(self, body: Mapping[str, Any], ids: np.ndarray, bids: np.ndarray) -> np.ndarray:
        if self._heavy is None:
            raise ValueError("this world has no heavy ranker")
        query = self._plain.encode(body["query"], int(EVENT_TIME.timestamp() * 1e6))
        rows = np.array([self._plain.rows[ad_id] for ad_id in ids])
        encoded = Encoded(*(part[None] for part in query))
        probabilities = heavy_probabilities(self._heavy, encoded, self._ads.take(rows), self._num_pair)
        return bids * probabilities[np.arange(len(rows)), self._plain.heads[rows]]


def check_server(server: Server, bodies: Sequence[Mapping[str, Any]], expected: Sequence[Expected]) -> float:
    """Hold a system's answers against the reference. The floor knows one answer, that to the first body.

    Returns:
        How much less utility than the right one an ad at some place had at most, in bids.

    Raises:
        DifferentAnswerError: Names the system and the place.
    """
    count, error = 1 if server.name == FLOOR else len(bodies), 0.0
    tolerance = BF16_TOLERANCE if server.name in (ADSIEVE, FLOOR) else FP32_TOLERANCE
    for body, wanted in zip(bodies[:count], expected, strict=False):
        answer = httpx.post(server.url, content=msgspec.json.encode(body), headers=server.all_headers, timeout=120)
        answer.raise_for_status()
        error = max(error, compare(server.name, answered_ids(server, answer), wanted, tolerance))
    return error


def answered_ids(server: Server, answer: httpx.Response) -> list[str]:
    """Ids of an answer in their order, however the system writes them."""
    content = answer.content
    if server.name == TRITON:
        content = content[int(answer.headers["inference-header-content-length"]) + LENGTH_BYTES :]
    ads = msgspec.json.decode(content)["ads"]
    return [ad["ad_id"] for ad in ads] if server.name == NAIVE else ads["ids"]


def compare(name: str, ids: list[str], wanted: Expected, tolerance: float) -> float:
    """The largest error of an answer, in bids; raises DifferentAnswerError."""
    if len(ids) != wanted.count or len(set(ids)) != len(ids) or not set(ids) <= set(wanted.utilities):
        raise DifferentAnswerError(f"{name}: {len(ids)} ads, expected {wanted.count} different ones of the best")
    survived = set(ids) if wanted.light is not None else set(wanted.utilities)
    errors = [_error(name, ids, wanted.utilities, survived, wanted.bids, tolerance)]
    if (light := wanted.light) is not None:  # the set that survived, by what the light stage orders by
        by_light = sorted(ids, key=lambda ad_id: -light[ad_id])
        errors.append(_error(name, by_light, light, set(light), wanted.bids, tolerance))
    return max(errors)


def _error(
    name: str,
    ids: list[str],
    utilities: Mapping[str, float],
    among: set[str],
    bids: Mapping[str, float],
    tolerance: float,
) -> float:
    """How far an order is from that of utilities ``among`` some ads, in bids."""
    right_order = sorted(among, key=lambda ad_id: -utilities[ad_id])
    largest = 0.0
    for place, (found, right) in enumerate(zip(ids, right_order, strict=False)):
        error = abs(utilities[found] - utilities[right]) / max(bids[found], bids[right])
        if error > tolerance:
            raise DifferentAnswerError(
                f"{name}: {found} at place {place} of utility {utilities[found]:.6g}, expected {right} of "
                f"{utilities[right]:.6g}"
            )
        largest = max(largest, error)
    return largest
