"""Trains a teacher series: one configuration, day by day or out of fold, each model sealed beside what it may score.

A daily series is incremental training: the first model learns the first days as configured; each next one begins with
the weights and the optimisers' state of the day before and passes once over that day alone. Its model of day d has seen
the days before d and scores day d. A series of K folds trains K models, each on the requests of the other folds.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from contracts.artifact import is_ready, write_json
from contracts.bundle import open_bundle
from contracts.errors import ConfigError, InputError
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from heavy_ranker.config import HeavyConfig
from heavy_ranker.data import read_impressions
from heavy_ranker.evaluate import predict, task_metrics
from heavy_ranker.export import export_heavy
from heavy_ranker.run import Run, load_run, with_groups
from heavy_ranker.series import (
    BUNDLE,
    RUN,
    SERIES_FILE,
    Member,
    SeriesKind,
    SeriesManifest,
    folds_of,
    member_path,
    series_version,
)
from heavy_ranker.train import train_examples
from heavy_ranker.warmstart import open_source
from modeling.examples import Examples
from modeling.log_requests import utc_microseconds
from modeling.run import EXAMPLES, SUMMARY_FILE, begin_run
from modeling.warm_start import CHECKPOINTS

MEMBER_FILE = "member.json"
DAY = timedelta(days=1)


@dataclass(frozen=True)
class _Plan:
    """One member to train: the impressions that it learns from, those that it is judged on, and what it begins from."""

    name: str
    learns: np.ndarray
    judged: np.ndarray
    config: HeavyConfig
    after: str | None = None
    scores_from: datetime | None = None
    fold: int | None = None


def train_daily(
    schema: FeatureSchema,
    log: LogPaths,
    out: Path,
    config: HeavyConfig,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    first_days: int = 1,
) -> SeriesManifest:
    """Train a daily series up to the last day of the log, days beginning at midnight UTC.

    All impressions of a day are learned: a model is judged on the next day, so none needs to be held back. Called
    again, an interrupted series goes on; with a later ``end``, a finished one grows by the days that have come.

    Args:
        schema: A fitted schema.
        log: Its datasets.
        out: Directory of the series.
        config: Of the first model; later ones make one pass.
        start: Only requests not before this time.
        end: Only requests before this time.
        first_days: Days that the first model learns from, and that no member scores.

    Raises:
        InputError: The log has no day after the first ones, or ``out`` holds a series of another configuration.
    """
    config, examples = _begin(schema, log, out, config, start, end)
    plans = list(_daily_plans(examples, config, first_days))
    if not plans:
        raise InputError(
            f"--first-days {first_days}: the log has no impression in its first days, so none to begin with"
        )
    return _finish(schema, out, config, "daily", None, [_member(schema, log, out, examples, plan) for plan in plans])


def train_folds(
    schema: FeatureSchema,
    log: LogPaths,
    out: Path,
    config: HeavyConfig,
    *,
    folds: int,
    fold_by: str = "request_id",
    start: datetime | None = None,
    end: datetime | None = None,
) -> SeriesManifest:
    """Train a model for each fold of the requests, on all the others.

    Args:
        schema: A fitted schema.
        log: Its datasets.
        out: Directory of the series.
        config: Of every model; all impressions of its folds are learned.
        folds: K, 2 or more.
        fold_by: Column of ``requests/`` whose hash is the fold; a user's id keeps a user in one fold.
        start: Only requests not before this time.
        end: Only requests before this time.

    Raises:
        ConfigError: There are fewer than two folds.
        InputError: ``requests/`` lacks the column, a fold is empty, or ``out`` holds another series.
    """
    if folds < 2:
        raise ConfigError(f"folds: expected 2 or more, got {folds}")
    config, examples = _begin(schema, log, out, config, start, end)
    plans = list(_fold_plans(examples, config, folds, fold_by, log))
    return _finish(schema, out, config, "folds", fold_by, [_member(schema, log, out, examples, plan) for plan in plans])


def _begin(
    schema: FeatureSchema,
    log: LogPaths,
    out: Path,
    config: HeavyConfig,
    start: datetime | None,
    end: datetime | None,
) -> tuple[HeavyConfig, Examples]:
    config = msgspec.structs.replace(with_groups(schema, config), validation_share=0.0)
    begin_run(out, schema, config)
    return config, read_impressions(schema, log, out / EXAMPLES, start=start, end=end)


def _daily_plans(examples: Examples, config: HeavyConfig, first_days: int) -> Iterator[_Plan]:
    """A day without impressions has no model of its own: the one before scores on."""
    times = np.asarray(examples.event_time)[examples.request_row]
    midnight = datetime.fromtimestamp(int(times.min()) // 1_000_000, examples.watermark.tzinfo).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    one_pass = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, epochs=1))
    began, after = midnight, None
    ends = midnight + first_days * DAY
    while began <= examples.watermark:
        learns = _between(times, began, ends)
        if learns.any():
            name = ends.date().isoformat()
            judged = _between(times, ends, ends + DAY)
            yield _Plan(name, learns, judged, config if after is None else one_pass, after=after, scores_from=ends)
            after = name
        began, ends = ends, ends + DAY


def _between(times: np.ndarray, start: datetime, end: datetime) -> np.ndarray:
    return (times >= utc_microseconds(start)) & (times < utc_microseconds(end))


def _fold_plans(examples: Examples, config: HeavyConfig, folds: int, fold_by: str, log: LogPaths) -> Iterator[_Plan]:
    found = examples.columns("requests", [fold_by])
    if fold_by not in found.schema.names:
        raise InputError(f"{log.requests}: column {fold_by} is missing, expected what --fold-by names")
    own = folds_of(found[fold_by], folds)[examples.request_row]
    for fold in range(folds):
        if not (own == fold).any():
            raise InputError(
                f"{log.requests}: no impression is in fold {fold} of {folds} by {fold_by}; use fewer folds"
            )
        yield _Plan(f"fold-{fold}", own != fold, own == fold, config, fold=fold)


def _member(schema: FeatureSchema, log: LogPaths, out: Path, examples: Examples, plan: _Plan) -> Member:
    """Train and seal one member; one that is there already is kept."""
    place = member_path(out, plan.name)
    if (place / MEMBER_FILE).exists():
        _check_same(place, msgspec.json.decode((place / MEMBER_FILE).read_bytes(), type=Member).impressions, plan)
    else:
        run = _train(schema, out, place / RUN, examples.select(np.flatnonzero(plan.learns)), plan)
        _check_same(place, run.summary.impressions, plan)
        if not is_ready(place / BUNDLE):
            export_heavy(run, log, place / BUNDLE, examples=examples.select(np.flatnonzero(plan.learns)))
        version = open_bundle(place / BUNDLE, kind="heavy").manifest.version
        member = Member(
            name=plan.name,
            version=version,
            scores_from=plan.scores_from,
            fold=plan.fold,
            impressions=run.summary.impressions,
            metrics=_metrics(run, examples.select(np.flatnonzero(plan.judged))),
        )
        write_json(place / MEMBER_FILE, member)
    if plan.after is not None:  # the newest alone is begun from
        shutil.rmtree(member_path(out, plan.after) / RUN / CHECKPOINTS, ignore_errors=True)
    return msgspec.json.decode((place / MEMBER_FILE).read_bytes(), type=Member)


def _check_same(place: Path, learned: int, plan: _Plan) -> None:
    """A member that learned other impressions belongs to a series of another window or other folds."""
    if learned != plan.learns.sum():
        raise InputError(
            f"{place}: learned {learned:,} impressions, this call would learn {plan.learns.sum():,}; choose another "
            "--out, or the window that it was trained with (a daily series grows by whole days)"
        )


def _train(schema: FeatureSchema, out: Path, place: Path, learns: Examples, plan: _Plan) -> Run:
    if (place / SUMMARY_FILE).exists():
        return load_run(place)
    source = None if plan.after is None else open_source(member_path(out, plan.after) / RUN)
    begin_run(place, schema, plan.config)
    return train_examples(schema, learns, place, plan.config, warm_start=source, title=f"Training {plan.name}")


def _metrics(run: Run, judged: Examples) -> dict[str, Any]:
    if not len(judged):
        return {}
    logits = predict(run.model, judged, batch_size=run.config.batch_size)
    return task_metrics(run.schema.tasks, logits, np.asarray(judged.labels), np.asarray(judged.weight))


def _finish(
    schema: FeatureSchema, out: Path, config: HeavyConfig, kind: SeriesKind, fold_by: str | None, members: list[Member]
) -> SeriesManifest:
    """Write the manifest: a day's model scores until the next one's day, the last without an end."""
    ends = [member.scores_from for member in members[1:]] + [None]
    members = [msgspec.structs.replace(member, scores_until=end) for member, end in zip(members, ends, strict=True)]
    described = {
        "kind": kind,
        "fold_by": fold_by,
        "schema_fingerprint": schema.fingerprint(),
        "config": msgspec.to_builtins(config),
        "members": members,
    }
    manifest = SeriesManifest(version=series_version(**described), **described)
    write_json(out / SERIES_FILE, manifest)
    return manifest
