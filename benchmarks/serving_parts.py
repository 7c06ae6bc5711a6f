"""What a request to adsieve consists of, each part measured alone in this process, and the query path the naive way.

Parts: decode, query path (encode, look-up, tower), id look-up, gather and score, top-k, encode, and by wrk the echo of
a body of the same size by an application that does nothing. Blocks of ``CALLS`` calls by turns, other bodies in each
call; medians over all calls. The rest of a request is what these parts do not cover.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.serving_naive_model import NaiveQueryTower, embed
from benchmarks.serving_plain import QueryEncoder
from benchmarks.serving_requests import EVENT_TIME, SCENARIO
from benchmarks.serving_systems import echo
from benchmarks.serving_world import World, query_spec
from benchmarks.serving_wrk import run_wrk, write_script
from contracts.bundle import open_bundle
from contracts.utility import top_positions
from service.api import RankRequest, RankResponse
from service.app import create_app
from service.deadline import Deadline
from service.features import FeatureNotes, QueryEncoding
from service.ranker import rank
from service.releases import LoadedRelease, Snapshot
from service.settings import Settings
from service.wire import decode_request, encode_response
from towers.serving import score

ROUNDS, CALLS = 8, 20
EVENT_TIME_US = int(EVENT_TIME.timestamp() * 1e6)

Call = Callable[[int], object]


@dataclass(frozen=True)
class Asked:
    """One request on its way, as each part receives it."""

    body: bytes
    request: RankRequest
    rows: np.ndarray
    embedding: np.ndarray
    utilities: np.ndarray
    response: RankResponse


def measure_parts(
    world: World, bodies: Sequence[Mapping[str, Any]], settings: Settings, work: Path, seconds: float
) -> dict[str, float]:
    """Milliseconds of each part, of the naive query path, and of the whole ranking in process."""
    follower = create_app(settings.model_copy(update={"local": work / "parts"})).state.follower
    follower.poll()
    snapshot = follower.snapshot
    release = snapshot.releases[SCENARIO]
    asked = [_ask(body, snapshot, release, settings) for body in bodies]
    found = _in_turns(_ours(asked, snapshot, release, settings) | _naive(world, bodies), len(asked))
    found["HTTP echo"] = _echo(asked, work, seconds)
    follower.close()
    return found


def _ask(body: Mapping[str, Any], snapshot: Snapshot, release: LoadedRelease, settings: Settings) -> Asked:
    sent = msgspec.json.encode(body)
    request = decode_request(sent)
    rows = release.live.lookup(body["candidates"]["ids"])
    rows = rows[rows >= 0]
    embedding = _query_path(request, release, settings)
    response = rank(request, snapshot, settings, Deadline()).response
    pins = release.live.pins(rows)
    utilities = score(embedding, pins.vectors, pins.bias, pins.scales)[:, 0].astype(np.float64)
    return Asked(sent, request, rows, embedding, utilities, response)


def _query_path(request: RankRequest, release: LoadedRelease, settings: Settings) -> np.ndarray:
    notes = FeatureNotes([])
    encoding = QueryEncoding(query=request.query, event_time_us=EVENT_TIME_US, notes=notes, settings=settings)
    return release.tower.embed_query(encoding.encode(release.tower.query_rows, release.release.two_tower))[0]


def _ours(asked: Sequence[Asked], snapshot: Snapshot, release: LoadedRelease, settings: Settings) -> dict[str, Call]:
    def encode(place: int) -> object:
        notes = FeatureNotes([])
        query = asked[place].request.query
        encoding = QueryEncoding(query=query, event_time_us=EVENT_TIME_US, notes=notes, settings=settings)
        return encoding.encode(release.tower.query_rows, release.release.two_tower)

    def lookup(place: int) -> object:
        candidates = asked[place].request.candidates
        return release.live.lookup(candidates["ids"] if isinstance(candidates, dict) else candidates or [])

    def gather_and_score(place: int) -> object:
        pins = release.live.pins(asked[place].rows)
        return score(asked[place].embedding, pins.vectors, pins.bias, pins.scales)

    def whole(place: int) -> object:
        response = rank(decode_request(asked[place].body), snapshot, settings, Deadline()).response
        return encode_response(response)

    return {
        "decode": lambda place: decode_request(asked[place].body),
        "query path": lambda place: _query_path(asked[place].request, release, settings),
        "query path, encoding alone": encode,
        "id look-up": lookup,
        "gather and score": gather_and_score,
        "top-k": lambda place: top_positions(asked[place].utilities, settings.survivors),
        "encode": lambda place: encode_response(asked[place].response),
        "whole request in process": whole,
    }


def _naive(world: World, bodies: Sequence[Mapping[str, Any]]) -> dict[str, Call]:
    bundle = open_bundle(world.two_tower)
    tower, encode = NaiveQueryTower(bundle), QueryEncoder(query_spec(bundle.schema))

    def path(place: int, threads: int) -> object:
        torch.set_num_threads(threads)
        return embed(tower, *encode(bodies[place]["query"], EVENT_TIME_US))

    return {
        "naive query path, 1 thread": partial(path, threads=1),
        "naive query path, 2 threads": partial(path, threads=2),
        "naive query path, encoding alone": lambda place: encode(bodies[place]["query"], EVENT_TIME_US),
    }


def _in_turns(calls: Mapping[str, Call], num_bodies: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name, call in calls.items():
            call(turn % num_bodies)
            for number in range(CALLS):
                place = (turn * CALLS + number) % num_bodies
                start = time.perf_counter()
                call(place)
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: median(found) for name, found in times.items()}


def _echo(asked: Sequence[Asked], work: Path, seconds: float) -> float:
    script = write_script([one.body for one in asked], {"Content-Type": "application/json"}, work / "echo-bodies")
    with echo(encode_response(asked[0].response), work) as server:
        run_wrk(server.url, script, connections=1, seconds=1)
        return run_wrk(server.url, script, connections=1, seconds=seconds).p50


PARTS = ("decode", "query path", "id look-up", "gather and score", "top-k", "encode", "HTTP echo")


def sum_of_parts(found: Mapping[str, float]) -> float:
    """Milliseconds of all parts that a request consists of."""
    return sum(found[name] for name in PARTS)
