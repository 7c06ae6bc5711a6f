"""A simulated log as the heavy ranker's benchmark reads it: what it trains on, and two sets that it is judged on.

One request in ten of all days but the last is held out: these are judged as they were drawn, so an error on them is the
model's own. The last day is judged beside them. It holds what no model trained until midnight can know: overnight the
trend of each category walks by .08 of a logit, some 7 % of that category's clicks.

Shape letters: N pairs, R requests, K tasks.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from adlogs.fit import fit_log, named_schema
from adlogs.simulate import simulate
from benchmarks.simulated_setup import judged_schema
from contracts.artifact import is_ready
from contracts.errors import LogError
from contracts.records import LogPaths, open_dataset
from contracts.schema import FeatureSchema
from distill.slice_defaults import asked_column
from distill.slices import SliceColumn
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import true_probabilities
from modeling.examples import Examples

HELD_OUT = 0.1
"""Share of the requests of all days but the last that is not trained on."""
OF_NEXT_DAY = 0.1
"""Share of the last day's requests that is judged: of the expected log loss that suffices."""
SLICED_BY = (
    "scenario", "objective", "surface", "device", "hour", "country", "language", "age_band", "income_band", "user_ctr",
    "activity", "category", "format", "ad_language", "advertiser_size", "price", "creative_score", "landing_score",
    "ad_age_days", "past_impressions", "past_ctr", "past_cvr", "advertiser_ctr", "user_advertiser_clicks",
)  # fmt: skip
_DAY = 86_400_000_000


@dataclass(frozen=True)
class Judged:
    """N pairs, their true probabilities [N, K], and the columns that cut them into slices."""

    examples: Examples
    truth: np.ndarray
    columns: dict[str, SliceColumn]


@dataclass(frozen=True)
class SimulatedLog:
    """A log's fitted schema, what is trained on, the held-out requests of the same days, and some of the day after."""

    schema: FeatureSchema
    training: Examples
    held_out: Judged
    next_day: Judged


def read_log(world: str, directory: Path) -> SimulatedLog:
    """Simulate, unless an earlier run has, fit the schema on all days but the last, and divide.

    Args:
        world: Preset of the simulation.
        directory: Takes the log and its encoded copy.
    """
    if not is_ready(directory / "log"):
        simulate(directory / "log", world)
    paths = LogPaths.under(directory / "log")
    until = _last_midnight(paths)
    schema = fit_log(judged_schema(named_schema("simulated_heavy")), paths, until=until)
    before = read_impressions(schema, paths, directory / "examples", end=until)
    after = read_impressions(schema, paths, directory / "examples", start=until)
    apart = drawn(before.request_ids, HELD_OUT)[before.request_row]
    judged = drawn(after.request_ids, OF_NEXT_DAY)[after.request_row]
    return SimulatedLog(
        schema=schema,
        training=before.select(np.flatnonzero(~apart)),
        held_out=_judged(paths, schema, before.select(np.flatnonzero(apart)), SLICED_BY),
        next_day=_judged(paths, schema, after.select(np.flatnonzero(judged)), ()),
    )


def drawn(request_ids: pa.Array, share: float) -> np.ndarray:
    """Whether each of R requests belongs to a share of them, by a hash of its id: the same in every run, bool [R].

    Example:
        >>> drawn(pa.array(["a", "b", "c", "d"]), 0.5).tolist()
        [True, True, False, False]
    """
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=4).digest() for text in request_ids.to_pylist())
    return np.frombuffer(digests, "<u4") < share * 2**32


def some_requests(examples: Examples, most: int, *, seed: int = 0) -> Examples:
    """All pairs of requests drawn at random, about ``most`` pairs; everything where there are no more."""
    if len(examples) <= most:
        return examples
    kept = np.random.default_rng(seed).random(len(examples.query)) < most / len(examples)
    return examples.select(np.flatnonzero(kept[examples.request_row]))


def _judged(paths: LogPaths, schema: FeatureSchema, examples: Examples, sliced_by: tuple[str, ...]) -> Judged:
    truth = true_probabilities(paths, examples, schema.tasks)
    if truth is None:
        raise LogError(f"{Path(paths.requests).parent}: expected truth/ in a simulated log, got none")
    return Judged(examples, truth, {name: asked_column(examples, name) for name in sliced_by})


def _last_midnight(paths: LogPaths) -> datetime:
    times = open_dataset(paths.requests).to_table(["event_time"])["event_time"]
    latest = int(np.asarray(times.cast("int64")).max())
    return datetime.fromtimestamp(latest // _DAY * _DAY / 1e6, tz=UTC)
