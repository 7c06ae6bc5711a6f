"""Slices: which pairs they hold, and their metrics against independent formulas."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics as sklearn_metrics

from contracts.errors import InputError
from contracts.probability import sigmoid
from distill.measures import SliceMetrics, measure_slices
from distill.scoring import ScoredPairs
from distill.slice_defaults import slice_columns
from distill.slices import SliceColumn, by_band, by_value, log_column
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
    wanted = {"slice": "all"} | wanted
    (row,) = [row for row in found if all(getattr(row, name) == value for name, value in wanted.items())]
    return row


def _measure(pairs: ScoredPairs, columns: dict[str, SliceColumn] | None = None) -> list[SliceMetrics]:
    return [one.metrics for one in measure_slices(pairs, columns or {})]


def test_winners_are_candidates_and_candidates_are_eligible(pairs: ScoredPairs) -> None:
    found = _measure(pairs)
    for stage, least in (("winners", 2), ("candidates", 1), ("eligible", 0)):
        row = _find(found, stage=stage, head="click", against="teacher")
        inside = pairs.stage >= least
        assert (row.rows, row.requests) == (inside.sum(), len(set(pairs.request[inside].tolist())))


def test_a_column_divides_each_stage(pairs: ScoredPairs) -> None:
    column = SliceColumn(np.arange(400) % 3, ("a", "b", "never", "c"))
    parts = [row for row in _measure(pairs, {"letter": column}) if row.slice == "letter"]
    assert list(dict.fromkeys((row.stage, row.value) for row in parts))[:4] == [
        ("winners", "a"),
        ("winners", "b"),
        ("winners", "never"),
        ("candidates", "a"),
    ]
    assert not [row for row in parts if row.value == "c"]
    for code, value in enumerate(("a", "b", "never")):
        inside = np.flatnonzero((column.codes == code) & (pairs.stage >= 1))
        alone = ScoredPairs(
            tasks=pairs.tasks,
            **{
                name: getattr(pairs, name)[inside]
                for name in ("request", "stage", "teacher", "student", "labels", "weight", "bid", "pays_for")
            },
        )
        for against in ("teacher", "labels"):
            where = {"head": "conversion", "against": against, "model": "student"}
            stage = "candidates" if against == "teacher" else "winners"
            row = _find(parts, stage=stage, slice="letter", value=value, **where)
            apart = _find(_measure(alone), stage=stage, **where)
            for metric in ("rows", "requests", "kl", "log_mae", "normalised_entropy", "auc", "gauc", "calibration"):
                assert getattr(row, metric) == pytest.approx(getattr(apart, metric), nan_ok=True), metric


def test_metrics_against_the_teacher_are_their_formulas(pairs: ScoredPairs) -> None:
    row = _find(_measure(pairs), stage="candidates", head="conversion", against="teacher")
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
    row = _find(_measure(pairs), stage="eligible", head="click", against="teacher")
    p, score, weight = sigmoid(pairs.teacher[:, 0]), pairs.student[:, 0], pairs.weight
    compared = np.outer(weight * p, weight * (1 - p)) * ~np.eye(400, dtype=bool)
    wins = (score[:, None] > score) + (score[:, None] == score) / 2
    assert row.auc == pytest.approx((compared * wins).sum() / compared.sum())
    groups = [np.flatnonzero(pairs.request == request) for request in range(20)]
    within = [(compared * wins)[np.ix_(g, g)].sum() / compared[np.ix_(g, g)].sum() for g in groups]
    assert row.gauc == pytest.approx(np.average(within, weights=[weight[g].sum() for g in groups]))


@pytest.mark.parametrize("model", ["student", "teacher"])
def test_metrics_against_labels_take_known_labels_of_winners(pairs: ScoredPairs, model: str) -> None:
    row = _find(_measure(pairs), head="click", against="labels", model=model)
    known = ~np.isnan(pairs.labels[:, 0])
    labels, logits, weight = pairs.labels[known, 0], getattr(pairs, model)[known, 0], pairs.weight[known]
    assert row.stage == "winners"
    assert row.rows == known.sum()
    assert row.auc == pytest.approx(sklearn_metrics.roc_auc_score(labels, logits, sample_weight=weight))
    assert row.calibration == pytest.approx((weight * sigmoid(logits)).sum() / (weight * labels).sum())
    assert np.isnan(row.kl)
    assert np.isnan(row.log_mae)


def test_a_student_that_is_the_teacher_is_perfect(pairs: ScoredPairs) -> None:
    row = _find(_measure(replace(pairs, student=pairs.teacher)), stage="winners", head="click", against="teacher")
    assert (row.kl, row.log_mae, row.calibration) == (0.0, 0.0, 1.0)


def test_reliability_bins_hold_the_means(pairs: ScoredPairs) -> None:
    curves = [one.reliability for one in measure_slices(pairs, {}) if one.reliability is not None]
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


def test_default_and_asked_columns(examples: Examples) -> None:
    columns = slice_columns(examples, ["country", "category", "activity", "sample_weight"])
    found = ["hour", "user activity", "price band"]  # of the ads' ages nothing is known: all were there from the start
    asked = ["country", "category", "activity", "sample_weight"]
    assert list(columns) == ["scenario", "objective", "day", *found, *asked]
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


def test_rare_values_share_a_slice() -> None:
    column = by_value(pa.array(["a"] * 5 + ["b"] * 3 + ["c", "d", None]), limit=2)
    assert column.values == ("a", "b", "other")
    assert column.codes.tolist() == [0] * 5 + [1] * 3 + [2, 2, 2]


def test_whole_numbers_come_in_their_order() -> None:
    assert by_value(pa.array(["10", "9", "b", "-2", None])).values == ("-2", "9", "10", "b", "missing")


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


def test_numbers_that_are_not_finite_are_apart() -> None:
    column = by_band(np.array([1.5, np.inf, 2.5, -np.inf, 3.5, 4.5, np.nan]))
    assert [column.values[code] for code in column.codes[[1, 3, 6]]] == ["missing"] * 3
    assert column.values[:-1] == ("1.5 to 2.25", "2.25 to 3", "3 to 3.75", "3.75 to 4.5")


def test_a_very_long_number_is_a_text() -> None:
    assert by_value(pa.array(["9" * 5000, "12", "3"])).values == ("3", "12", "9" * 5000)


def test_a_column_of_bytes_that_are_no_text_is_named(examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.chunked_array([pa.array([b"\xff\xfe"] * len(examples.request_ids))])
    monkeypatch.setattr("distill.slices.raw_column", lambda *_: (column, np.asarray(examples.request_row)))
    with pytest.raises(InputError, match="slice blob: has type binary, expected text or numbers"):
        log_column(examples, "blob")


def test_a_column_named_like_a_whole_stage_is_refused(examples: Examples) -> None:
    with pytest.raises(InputError, match="slice all: is what the report calls a stage as a whole"):
        slice_columns(examples, ["all"])


def test_a_column_that_the_report_cuts_by_anyway_stays_as_it_is(examples: Examples) -> None:
    days = slice_columns(examples)["day"]
    assert slice_columns(examples, ["day"])["day"].values == days.values
