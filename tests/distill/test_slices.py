"""Slices: which pairs they hold, and their metrics against independent formulas."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics as sklearn_metrics

from contracts.errors import InputError
from contracts.probability import sigmoid
from distill.measures import SliceMetrics, measure_slices, reliability
from distill.scoring import ScoredPairs
from distill.slices import SliceColumn, by_band, by_value, slice_columns, slices
from modeling.examples import Examples


@pytest.fixture(scope="module")
def pairs() -> ScoredPairs:
    """400 pairs of 20 requests with noise between student and teacher; half of the winners have labels."""
    generator = np.random.default_rng(2)
    teacher = generator.normal(-1, 1.5, size=(400, 2))
    stage = generator.integers(3, size=400).astype(np.int8)
    labels = (generator.random((400, 2)) < sigmoid(teacher)).astype(np.float32)
    labels[(stage < 2) | (generator.random(400) < 0.5)] = np.nan
    return ScoredPairs(
        tasks=("click", "conversion"),
        request=np.repeat(np.arange(20, dtype=np.int32), 20),
        stage=stage,
        teacher=teacher,
        student=teacher + generator.normal(scale=0.5, size=(400, 2)),
        labels=labels,
        weight=generator.integers(1, 4, size=400).astype(np.float64),
        bid=np.ones(400),
        pays_for=np.zeros(400, np.int64),
    )


def _find(found: list[SliceMetrics], **wanted: str) -> SliceMetrics:
    (row,) = [row for row in found if all(getattr(row, name) == value for name, value in wanted.items())]
    return row


def test_winners_are_candidates_and_candidates_are_eligible(pairs: ScoredPairs) -> None:
    found = {part.stage: part.rows for part in slices(pairs.stage, {})}
    assert set(found["winners"]) < set(found["candidates"]) < set(found["eligible"])
    np.testing.assert_array_equal(found["winners"], np.flatnonzero(pairs.stage == 2))
    assert len(found["eligible"]) == len(pairs)


def test_a_column_divides_each_stage(pairs: ScoredPairs) -> None:
    column = SliceColumn(np.arange(400) % 3, ("a", "b", "never", "c"))
    parts = [part for part in slices(pairs.stage, {"letter": column}) if part.name == "letter"]
    assert [(part.stage, part.value) for part in parts[:3]] == [
        ("winners", "a"),
        ("winners", "b"),
        ("winners", "never"),
    ]
    assert not [part for part in parts if part.value == "c"]
    for part in parts:
        np.testing.assert_array_equal(column.codes[part.rows], column.values.index(part.value))
    eligible = np.concatenate([part.rows for part in parts if part.stage == "eligible"])
    np.testing.assert_array_equal(np.sort(eligible), np.arange(400))


def test_metrics_against_the_teacher_are_their_formulas(pairs: ScoredPairs) -> None:
    row = _find(measure_slices(pairs, {}), stage="candidates", head="conversion", against="teacher")
    inside = pairs.stage >= 1
    p, q, weight = sigmoid(pairs.teacher[inside, 1]), sigmoid(pairs.student[inside, 1]), pairs.weight[inside]
    assert row.rows == inside.sum()
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert row.kl == pytest.approx(np.average(kl, weights=weight))
    assert row.log_mae == pytest.approx(np.average(np.abs(np.log(q / p)), weights=weight))
    assert row.calibration == pytest.approx((weight * q).sum() / (weight * p).sum())
    base = np.average(p, weights=weight)
    entropy = -base * np.log(base) - (1 - base) * np.log(1 - base)
    cross = np.average(-p * np.log(q) - (1 - p) * np.log(1 - q), weights=weight)
    assert row.normalised_entropy == pytest.approx(cross / entropy)


def test_auc_against_the_teacher_takes_its_probabilities_as_soft_labels(pairs: ScoredPairs) -> None:
    row = _find(measure_slices(pairs, {}), stage="eligible", head="click", against="teacher")
    p, score = sigmoid(pairs.teacher[:, 0]), pairs.student[:, 0]
    expected = sklearn_metrics.roc_auc_score(
        np.r_[np.ones(400), np.zeros(400)],
        np.r_[score, score],
        sample_weight=np.r_[pairs.weight * p, pairs.weight * (1 - p)],
    )
    assert row.auc == pytest.approx(expected)


@pytest.mark.parametrize("model", ["student", "teacher"])
def test_metrics_against_labels_take_known_labels_of_winners(pairs: ScoredPairs, model: str) -> None:
    row = _find(measure_slices(pairs, {}), head="click", against="labels", model=model)
    known = ~np.isnan(pairs.labels[:, 0])
    labels, logits, weight = pairs.labels[known, 0], getattr(pairs, model)[known, 0], pairs.weight[known]
    assert row.stage == "winners"
    assert row.rows == known.sum()
    assert row.auc == pytest.approx(sklearn_metrics.roc_auc_score(labels, logits, sample_weight=weight))
    assert row.calibration == pytest.approx((weight * sigmoid(logits)).sum() / (weight * labels).sum())
    assert np.isnan(row.kl)
    assert np.isnan(row.log_mae)


def test_a_student_that_is_the_teacher_is_perfect(pairs: ScoredPairs) -> None:
    row = _find(
        measure_slices(replace(pairs, student=pairs.teacher), {}), stage="winners", head="click", against="teacher"
    )
    assert (row.kl, row.log_mae, row.calibration) == (0.0, 0.0, 1.0)


def test_reliability_bins_hold_the_means(pairs: ScoredPairs) -> None:
    curves = reliability(pairs)
    assert [(c.stage, c.head, c.against) for c in curves[:4]] == [
        ("winners", "click", "teacher"),
        ("winners", "click", "labels"),
        ("winners", "conversion", "teacher"),
        ("winners", "conversion", "labels"),
    ]
    (curve,) = [c for c in curves if (c.stage, c.head) == ("eligible", "click")]
    assert curve.predicted == sorted(curve.predicted)
    assert len(curve.predicted) == len(curve.observed) == 10
    lowest = np.argsort(pairs.student[:, 0])[:20]
    assert sigmoid(pairs.student[lowest, 0]).max() < curve.predicted[1]


def test_scenario_objective_day_and_asked_columns(examples: Examples) -> None:
    columns = slice_columns(examples, ["country", "category", "activity", "sample_weight"])
    assert list(columns) == ["scenario", "objective", "day", "country", "category", "activity", "sample_weight"]
    assert columns["scenario"].values == ("shopping",)
    assert columns["objective"].values == ("click", "conversion", "impression")
    assert columns["day"].values == ("2026-03-01", "2026-03-02", "2026-03-03")
    assert columns["country"].values == ("DE", "missing", "日本")
    assert columns["category"].values == ("Bücher", "food", "games", "shoes")
    countries = examples.columns("requests", ["country"])["country"].fill_null("missing").to_pylist()
    categories = examples.columns("ads", ["category"])["category"].to_pylist()
    for pair in (0, 5, len(examples) - 1):
        country, category = columns["country"], columns["category"]
        assert country.values[country.codes[pair]] == countries[examples.request_row[pair]]
        assert category.values[category.codes[pair]] == categories[examples.ad_row[pair]]
    assert all(len(column.codes) == len(examples) for column in columns.values())


def test_unknown_and_nested_columns_are_refused(examples: Examples) -> None:
    with pytest.raises(InputError, match="slice shoe_size: no such column in requests/, ads/ or candidates/"):
        slice_columns(examples, ["shoe_size"])
    with pytest.raises(InputError, match="slice clicks.ad_id: has type list<.*>, expected one value a row"):
        slice_columns(examples, ["clicks.ad_id"])


def test_rare_values_share_a_slice() -> None:
    column = by_value(pa.array(["a"] * 5 + ["b"] * 3 + ["c", "d", None]), limit=2)
    assert column.values == ("a", "b", "other")
    assert column.codes.tolist() == [0] * 5 + [1] * 3 + [2, 2, 2]


def test_dictionary_columns_cut_like_plain_ones() -> None:
    texts = pa.array(["b", "a", None])
    plain, encoded = by_value(texts), by_value(texts.dictionary_encode())
    assert plain.values == encoded.values
    np.testing.assert_array_equal(plain.codes, encoded.codes)


def test_bands_are_of_equal_size_and_missing_is_apart() -> None:
    column = by_band(np.array([*range(100), np.nan], np.float64))
    assert column.values == ("0 to 24.75", "24.75 to 49.5", "49.5 to 74.25", "74.25 to 99", "missing")
    assert np.bincount(column.codes).tolist() == [25, 25, 25, 25, 1]


@pytest.mark.parametrize(("numbers", "values"), [([2.0, 2.0], ("2", "missing")), ([np.nan], ("missing",))])
def test_bands_of_a_constant_and_of_nothing(numbers: list[float], values: tuple[str, ...]) -> None:
    column = by_band(np.array(numbers))
    assert column.values == values
    assert set(column.codes) == {0}
