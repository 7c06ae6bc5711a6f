"""Two students side by side, against a slow paired bootstrap."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from contracts import metrics as plain
from contracts.errors import WrongArtifactError
from contracts.probability import sigmoid
from distill.compare import Comparison, compare
from distill.evaluate import Assessment, Evaluation
from distill.measures import measure_slices
from distill.recall import measure_recall
from distill.replicates import draw_replicates
from distill.scoring import ScoredPairs
from distill.slices import SliceColumn

NUM_REQUESTS, ADS = 60, 20


@pytest.fixture(scope="module")
def pairs() -> ScoredPairs:
    generator = np.random.default_rng(6)
    count = NUM_REQUESTS * ADS
    teacher = generator.normal(-1, 1, size=(count, 1))
    return ScoredPairs(
        tasks=("click",),
        request=np.repeat(np.arange(NUM_REQUESTS, dtype=np.int32), ADS),
        stage=np.full(count, 2, np.int8),
        teacher=teacher,
        student=teacher + generator.normal(scale=0.4, size=(count, 1)),
        labels=(generator.random((count, 1)) < sigmoid(teacher)).astype(np.float32),
        weight=np.ones(count),
        bid=generator.lognormal(size=count),
        pays_for=np.zeros(count, np.int64),
    )


@pytest.fixture(scope="module")
def later(pairs: ScoredPairs) -> ScoredPairs:
    """Much worse on the first half of the ads of a request, better on the other."""
    first = (np.arange(len(pairs)) % ADS < ADS // 2)[:, None]
    noise = pairs.student - pairs.teacher
    return replace(pairs, student=pairs.teacher + np.where(first, 3.0 * noise, 0.5 * noise))


def _assess(pairs: ScoredPairs, bundle: str) -> Assessment:
    half = SliceColumn((np.arange(len(pairs)) % ADS >= ADS // 2).astype(np.int64), ("first", "second"))
    measured = measure_slices(pairs, {"half": half})
    pools = measure_recall(pairs, top_k=3, pool_size=ADS, survivors=(5, ADS))
    evaluation = Evaluation(
        bundle=bundle,
        log="log",
        scenario="shopping",
        teacher_version="teacher",
        trained_on="teacher",
        first="2026-03-01T00:00:00Z",
        last="2026-03-02T00:00:00Z",
        requests=NUM_REQUESTS,
        pairs=len(pairs),
        tasks=pairs.tasks,
        slices=[one.metrics for one in measured],
        reliability=[],
        recall=None if pools is None else pools.report,
    )
    return Assessment(evaluation, measured, pools)


@pytest.fixture(scope="module")
def comparison(pairs: ScoredPairs, later: ScoredPairs) -> Comparison:
    return compare(_assess(pairs, "old"), _assess(later, "new"))


def test_differences_have_paired_intervals(pairs: ScoredPairs, later: ScoredPairs, comparison: Comparison) -> None:
    inside = np.arange(len(pairs)) % ADS >= ADS // 2
    drawn = draw_replicates(pairs.request)
    differences = []
    for draw in range(400):
        weight = drawn.counts[drawn.unit, draw].astype(np.float64)[inside]
        kl = [plain.bernoulli_kl(p.teacher[inside, 0], p.student[inside, 0], weight) for p in (pairs, later)]
        ratio = [
            plain.calibration_ratio(p.labels[inside, 0], sigmoid(p.student[inside, 0]), weight) for p in (pairs, later)
        ]
        differences.append([kl[1] - kl[0], abs(np.log(ratio[1])) - abs(np.log(ratio[0]))])
    bounds = np.quantile(differences, [0.025, 0.975], axis=0)
    for metric, against, expected in (("kl", "teacher", bounds[:, 0]), ("calibration", "labels", bounds[:, 1])):
        (row,) = [
            row
            for row in comparison.rows
            if (row.stage, row.value, row.metric, row.against) == ("winners", "second", metric, against)
        ]
        assert (row.low, row.high) == pytest.approx(tuple(expected))
        change = row.after - row.before if metric == "kl" else abs(np.log(row.after)) - abs(np.log(row.before))
        assert row.difference == pytest.approx(change)
        assert (row.rows, row.requests) == (inside.sum(), NUM_REQUESTS)


def test_what_surely_got_worse_comes_first(comparison: Comparison) -> None:
    order = {"worse": 0, "unclear": 1, "better": 2}
    keys = [(order[row.verdict], -row.worsening) for row in comparison.rows]
    assert keys == sorted(keys)
    assert comparison.rows[0].value == "first"
    verdicts = {(row.value, row.metric): row.verdict for row in comparison.rows if row.against == "teacher"}
    for metric in ("kl", "log_mae", "normalised_entropy", "auc", "gauc"):
        assert verdicts["first", metric] == "worse"
        assert verdicts["second", metric] == "better"
    (row,) = [
        r for r in comparison.rows if (r.stage, r.value, r.metric, r.against) == ("winners", "first", "auc", "teacher")
    ]
    assert row.worsening == pytest.approx((row.before - row.after) / (1 - row.before))


def test_recall_of_both_is_compared_pool_by_pool(
    comparison: Comparison, pairs: ScoredPairs, later: ScoredPairs
) -> None:
    assert {row.metric for row in comparison.recall} == {"recall", "utility_lost"}
    (row,) = [r for r in comparison.recall if (r.order, r.survivors, r.metric) == ("equal bids, click", 5, "recall")]
    found = []
    for one in (pairs, later):
        values = zip(one.teacher.reshape(-1, ADS), one.student.reshape(-1, ADS), strict=True)
        found.append([plain.recall_at(heavy, light, 3, 5) for heavy, light in values])
    assert (row.before, row.after) == pytest.approx(tuple(np.mean(found, axis=1)))
    assert row.low < row.difference < row.high
    assert row.verdict == "worse"
    whole = [r for r in comparison.recall if r.survivors == ADS]
    assert {(r.difference, r.verdict) for r in whole} == {(0.0, "unclear")}


def test_a_student_is_no_worse_than_itself(pairs: ScoredPairs) -> None:
    found = compare(_assess(pairs, "old"), _assess(pairs, "same"))
    assert {(row.difference, row.low, row.high, row.verdict) for row in found.rows} == {(0.0, 0.0, 0.0, "unclear")}


def test_slices_of_other_rows_are_not_compared(pairs: ScoredPairs) -> None:
    before, after = _assess(pairs, "old"), _assess(pairs, "new")
    moved = [
        replace(one, metrics=msgspec.structs.replace(one.metrics, rows=one.metrics.rows + 1))
        if one.metrics.value == "first"
        else one
        for one in after.measured
    ]
    found = compare(before, replace(after, measured=moved))
    assert {row.value for row in found.rows} == {"all", "second"}


def test_other_pairs_or_another_teacher_are_refused(pairs: ScoredPairs) -> None:
    before, after = _assess(pairs, "old"), _assess(pairs, "new")
    for change, message in (
        ({"pairs": 7}, "pairs is 7, there 1200"),
        ({"teacher_version": "t-2"}, "teacher_version is"),
    ):
        other = replace(after, evaluation=msgspec.structs.replace(after.evaluation, **change))
        with pytest.raises(WrongArtifactError, match=f"new cannot be compared with old: {message}"):
            compare(before, other)


def test_slices_of_the_same_pairs_count_once(pairs: ScoredPairs, later: ScoredPairs) -> None:
    """Under the first name: `all` before a column with one value, a column before its copy."""
    half = (np.arange(len(pairs)) % ADS >= ADS // 2).astype(np.int64)
    cuts = {
        "scenario": SliceColumn(np.zeros(len(pairs), np.int64), ("shopping",)),
        "half": SliceColumn(half, ("first", "second")),
        "copy": SliceColumn(1 - half, ("b", "a")),
        "other": SliceColumn(np.arange(len(pairs)) % 2, ("even", "odd")),  # as many pairs and requests, but others
    }
    first, second = (
        replace(_assess(one, name), measured=measure_slices(one, cuts))
        for one, name in ((pairs, "old"), (later, "new"))
    )
    found = {(row.slice, row.value) for row in compare(first, second).rows}
    assert found == {("all", "all"), ("half", "first"), ("half", "second"), ("other", "even"), ("other", "odd")}
    assert {one.metrics.slice for one in second.measured} == {"all", *cuts}
