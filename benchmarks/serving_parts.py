"""What a request to adsieve consists of, each part measured alone in this process, and the query path the naive way.

Parts: what the hot route does around the ranking (admission, body, a turn of the event loop, count), decode, prepare
(route, check the candidates' columns, unknown features, lengths, encode), the query tower, resolve (id look-up, states,
repetitions, bids), score, top-k, answer (its columns), encode, metrics (as one of several workers counts, in files that
they share, what is added up now and then included), and by wrk the echo of a body of the same size by an application
that does nothing. Blocks of ``CALLS`` calls by turns, other bodies in each call; medians over all
calls. The rest of a request is what these parts do not cover: what holds them together, and that each finds the caches
as another part left them.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
from prometheus_client import values

from benchmarks.serving_naive_model import NaiveQueryTower, embed
from benchmarks.serving_plain import QueryEncoder
from benchmarks.serving_requests import EVENT_TIME, SCENARIO
from benchmarks.serving_systems import echo
from benchmarks.serving_world import World, query_spec
from benchmarks.serving_wrk import run_wrk, write_script
from contracts.bundle import open_bundle
from indexing.id_keys import Keys
from service.answering import Answering
from service.api import RankRequest
from service.app import create_app
from service.candidates import resolve
from service.deadline import Deadline
from service.features import FeatureNotes, QueryEncoding
from service.follower import Follower
from service.heavy_runner import DirectRunner
from service.light import score_pool
from service.process_state import COUNTS_VARIABLE
from service.ranker import Outcome, Underway, light_stage, prepare, rank
from service.releases import LoadedRelease, Snapshot
from service.settings import Settings
from service.shadow import Shadows
from service.survivors import choose_survivors
from service.telemetry import Telemetry
from service.wire import candidate_columns, decode_request, encode_response
from service.workers import Workers

ROUNDS, CALLS = 8, 20
LOT = 256
"""Requests that a busy worker answers between two times that it adds up what they count."""
EVENT_TIME_US = int(EVENT_TIME.timestamp() * 1e6)

CHAIN = "decode to encode, one after another"

Call = Callable[[int], object]


@dataclass(frozen=True)
class Asked:
    """One request on its way, as each part receives it."""

    body: bytes
    request: RankRequest
    embedding: np.ndarray
    underway: Underway
    outcome: Outcome


def measure_parts(
    world: World, bodies: Sequence[Mapping[str, Any]], settings: Settings, work: Path, seconds: float
) -> dict[str, float]:
    """Milliseconds of each part, of the naive query path, and of the whole ranking in process."""
    app = create_app(settings.model_copy(update={"local": work / "parts"}))
    follower = app.state.follower
    follower.poll()
    snapshot = follower.snapshot
    release = snapshot.releases[SCENARIO]
    asked = [_ask(body, snapshot, release, settings) for body in bodies]
    ours = _ours(asked, snapshot, release, settings)
    found = _in_turns(ours | _naive(world, bodies), len(asked))
    found[CHAIN] = _one_after_another([ours[name] for name in PARTS if name in ours], len(asked))
    with _counts_shared(work / "counts"):
        telemetry = Telemetry()
    found["metrics"] = _metrics(asked, telemetry)
    found["route"] = asyncio.run(_route(asked, follower, app.state.workers, settings, telemetry))
    found["HTTP echo"] = _echo(asked, work, seconds)
    follower.close()
    return found


def _ask(body: Mapping[str, Any], snapshot: Snapshot, release: LoadedRelease, settings: Settings) -> Asked:
    sent = msgspec.json.encode(body)
    request = decode_request(sent)
    embedding = _query_path(request, release, settings)
    underway = light_stage(request, snapshot, settings, Deadline())
    underway.start_heavy(DirectRunner())
    return Asked(sent, request, embedding, underway, underway.finish())


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

    def check(place: int) -> object:
        candidates = asked[place].request.candidates
        return None if candidates is None else candidate_columns(candidates, max_candidates=settings.max_candidates)

    def resolved(place: int) -> object:
        columns = asked[place].underway.inputs.columns
        if columns is None:
            return None
        keys = columns.keys  # anew, as they keep their hashes
        keys = Keys(keys.data, keys.starts, keys.lengths, keys.heads, keys.has_long)
        return resolve(msgspec.structs.replace(columns, keys=keys), [release], [], (), settings)

    def scored(place: int) -> object:
        return score_pool(release, asked[place].underway.resolved.pools[0], asked[place].embedding)

    def survivors(place: int) -> object:
        pools, count = asked[place].underway.scored, settings.survivors
        return choose_survivors(pools, count, quotas={}, explore_share=0.0, request_id="")

    def whole(place: int) -> object:
        response = rank(decode_request(asked[place].body), snapshot, settings, Deadline()).response
        return encode_response(response)

    return {
        "decode": lambda place: decode_request(asked[place].body),
        "check": check,
        "prepare": lambda place: prepare(asked[place].request, snapshot, settings, Deadline()),
        "tower": lambda place: release.tower.embed_query(asked[place].underway.inputs.queries[0]),
        "query path": lambda place: _query_path(asked[place].request, release, settings),
        "query path, encoding alone": encode,
        "resolve": resolved,
        "score": scored,
        "top-k": survivors,
        "answer": lambda place: asked[place].underway.finish(),
        "encode": lambda place: encode_response(asked[place].outcome.response),
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


def _one_after_another(calls: Sequence[Call], num_bodies: int) -> float:
    """Milliseconds of parts that run in the order of a request."""
    times = []
    for number in range(ROUNDS * CALLS):
        start = time.perf_counter()
        for call in calls:
            call(number % num_bodies)
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


@contextmanager
def _counts_shared(directory: Path) -> Iterator[None]:
    """Within it metrics are made as in one of several workers."""
    directory.mkdir()
    before, os.environ[COUNTS_VARIABLE] = values.ValueClass, str(directory)
    values.ValueClass = values.get_value_class()
    try:
        yield
    finally:
        values.ValueClass = before
        del os.environ[COUNTS_VARIABLE]


def _metrics(asked: Sequence[Asked], telemetry: Telemetry) -> float:
    """Milliseconds a request of what its outcome counts."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for number in range(LOT):
            telemetry.observe(asked[number % len(asked)].outcome, may_be_cold=False)
        telemetry.add_up()
        times.append(1000 * (time.perf_counter() - start) / LOT)
    return median(times)


async def _route(
    asked: Sequence[Asked], follower: Follower, workers: Workers, settings: Settings, telemetry: Telemetry
) -> float:
    """Milliseconds of what the hot route does around the ranking."""
    shadows = Shadows(settings, telemetry.experiments, workers=workers, feedback=None)
    answering = Answering(follower, settings, telemetry, workers, None, shadows)
    times = []
    for number in range(ROUNDS * CALLS):
        body = asked[number % len(asked)].body
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        start = time.perf_counter()
        answering.admission.admit()
        await answering.body({"headers": headers}, partial(_received, body))
        answering.admission.join()
        await answering.in_rank_thread(int)
        answering.admission.leave()
        answering.admission.let_out()
        answering.count(200)
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


async def _received(body: bytes) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": False}


def _echo(asked: Sequence[Asked], work: Path, seconds: float) -> float:
    script = write_script([one.body for one in asked], {"Content-Type": "application/json"}, work / "echo-bodies")
    with echo(encode_response(asked[0].outcome.response), work) as server:
        run_wrk(server.url, script, connections=1, seconds=1)
        return run_wrk(server.url, script, connections=1, seconds=seconds).p50


PARTS = (
    *("route", "decode", "prepare", "tower", "resolve", "score", "top-k", "answer", "encode", "metrics"),
    "HTTP echo",
)


def sum_of_parts(found: Mapping[str, float]) -> float:
    """Milliseconds of all parts that a request consists of."""
    return sum(found[name] for name in PARTS)
