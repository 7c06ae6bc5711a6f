"""Logs in which a metric cannot be: it is NaN, null in JSON, and nothing fails or warns."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from distill.measures import Measured, SliceMetrics, measure_slices
from distill.metric_sums import METRICS
from distill.recall import STUDENT, UTILITY, measure_recall
from distill.scoring import ScoredPairs
from distill.slices import SliceColumn


@pytest.fixture
def pairs() -> ScoredPairs:
    """12 requests of 6 ads, two of them shown."""
    generator = np.random.default_rng(5)
    stage = np.tile(np.array([2, 2, 1, 1, 0, 0], np.int8), 12)
    labels = np.where(stage[:, None] == 2, generator.integers(2, size=(72, 2)), np.nan).astype(np.float32)
    return ScoredPairs(
        tasks=("click", "conversion"),
        request=np.repeat(np.arange(12, dtype=np.int32), 6),
        stage=stage,
        teacher=generator.normal(size=(72, 2)),
        student=generator.normal(size=(72, 2)),
        labels=labels,
        weight=np.ones(72),
        bid=np.ones(72),
        pays_for=np.zeros(72, np.int64),
    )


def _measure(pairs: ScoredPairs, columns: dict[str, SliceColumn] | None = None) -> list[Measured]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure_slices(pairs, columns or {})
        recall = measure_recall(pairs, top_k=2, pool_size=6, survivors=(2, 6))
    metrics = [one.metrics for one in found]
    assert len(msgspec.json.decode(msgspec.json.encode(metrics), type=list[dict])) == len(metrics)
    assert recall is None or msgspec.json.decode(msgspec.json.encode(recall.report))["requests"] > 0
    return found


def _find(found: list[Measured], **wanted: str) -> list[SliceMetrics]:
    return [one.metrics for one in found if all(getattr(one.metrics, name) == value for name, value in wanted.items())]


def test_no_winners(pairs: ScoredPairs) -> None:
    found = _measure(replace(pairs, stage=np.minimum(pairs.stage, 1)))
    assert {one.metrics.stage for one in found} == {"candidates", "eligible"}


def test_one_request_with_one_ad(pairs: ScoredPairs) -> None:
    names = ("request", "stage", "teacher", "student", "labels", "weight", "bid", "pays_for")
    found = _measure(replace(pairs, **{name: getattr(pairs, name)[:1] for name in names}))
    (row,) = _find(found, stage="eligible", head="click")
    assert (row.rows, row.requests) == (1, 1)
    assert np.isfinite([row.kl, row.log_mae, row.normalised_entropy, row.calibration]).all()
    assert np.isnan([row.auc, row.gauc]).all()  # one ad has nothing to rank against
    assert np.isnan(list(row.intervals.values())).all()


def test_no_label_is_known(pairs: ScoredPairs) -> None:
    found = _measure(replace(pairs, labels=np.full((72, 2), np.nan, np.float32)))
    assert {one.metrics.against for one in found} == {"teacher"}
    assert len(found) == 6


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_head_with_one_class_only(pairs: ScoredPairs, label: float) -> None:
    labels = pairs.labels.copy()
    labels[:, 1] = np.where(np.isnan(labels[:, 1]), np.nan, label)
    rows = _find(_measure(replace(pairs, labels=labels)), head="conversion", against="labels")
    assert {row.model for row in rows} == {"student", "teacher"}
    for row in rows:
        assert np.isnan([row.kl, row.normalised_entropy, row.auc, row.gauc]).all()
        assert np.isnan(row.calibration) == (label == 0)
        assert np.isnan(row.intervals["calibration"]).all() == (label == 0)
        assert np.isnan(row.intervals["auc"]).all()


def test_bids_that_are_missing(pairs: ScoredPairs) -> None:
    recall = measure_recall(replace(pairs, bid=np.full(72, np.nan)), top_k=2, pool_size=6, survivors=(2, 6))
    assert recall is not None
    assert np.isnan(recall.report.at(UTILITY, STUDENT, 2))
    _measure(replace(pairs, bid=np.full(72, np.nan)))


def test_bids_of_nothing_lose_no_utility(pairs: ScoredPairs) -> None:
    recall = measure_recall(replace(pairs, bid=np.zeros(72)), top_k=2, pool_size=6, survivors=(2, 6))
    assert recall is not None
    curve = recall.report.curve(UTILITY, STUDENT)
    assert curve is not None
    assert np.isnan(curve.utility_lost).all()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pairs, first: replace(pairs, student=np.where(first[:, None], np.nan, pairs.student)),
        lambda pairs, first: replace(pairs, teacher=np.where(first[:, None], np.nan, pairs.teacher)),
    ],
)
def test_a_prediction_that_is_no_number_spoils_its_slices_alone(
    pairs: ScoredPairs, spoil: Callable[[ScoredPairs, np.ndarray], ScoredPairs]
) -> None:
    first = pairs.request == 0
    found = _measure(spoil(pairs, first), {"part": SliceColumn(first.astype(np.int64), ("sound", "spoilt"))})
    sound = _find(_measure(pairs, {"part": SliceColumn(first.astype(np.int64), ("sound", "spoilt"))}), value="sound")
    assert str(_find(found, value="sound")) == str(sound)
    for value in ("spoilt", "all"):
        for row in _find(found, stage="eligible", value=value):
            assert np.isnan([getattr(row, metric) for metric in METRICS]).all(), row


def test_a_pair_that_weighs_nothing_says_nothing(pairs: ScoredPairs) -> None:
    first = pairs.request == 0
    weight = np.where(first, 0.0, 1.0)
    spoilt = replace(pairs, weight=weight, student=np.where(first[:, None], np.nan, pairs.student))
    names = ("request", "stage", "teacher", "student", "labels", "weight", "bid", "pays_for")
    without = replace(pairs, **{name: getattr(pairs, name)[~first] for name in names})
    for row, alone in zip(_measure(spoilt), _measure(without), strict=True):
        for metric in METRICS:
            assert getattr(row.metrics, metric) == pytest.approx(getattr(alone.metrics, metric), nan_ok=True), metric
    nothing = _measure(replace(pairs, weight=np.zeros(72)))
    assert np.isnan([getattr(nothing[0].metrics, metric) for metric in METRICS]).all()
