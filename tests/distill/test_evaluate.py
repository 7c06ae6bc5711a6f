"""Evaluation through the sealed bundle: what its graphs say, and what the report makes of it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from contracts.bundle import Bundle
from contracts.errors import InputError, LogError
from contracts.records import LogPaths
from distill.evaluate import Evaluation, Report, evaluate_bundles
from distill.recall import STUDENT, UTILITY
from distill.report import headline, render_html, write_report
from distill.report_metrics import decimals
from distill.run import Run
from distill.scoring import score_pairs
from distill.train import forward
from modeling.batches import gather
from modeling.examples import Examples
from towers.serving import TwoTowerServing

SCORE_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def evaluation(bundle: Bundle, log: LogPaths, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    report = evaluate_bundles(
        [bundle],
        [log],
        columns=["country", "price"],
        pool_size=60,
        top_k=5,
        threads=1,
        cache=tmp_path_factory.mktemp("cache"),
    )
    assert report.comparisons == []
    return report.evaluations[0]


def test_the_served_student_equals_the_trained_module_on_every_pair(
    bundle: Bundle, run: Run, examples: Examples
) -> None:
    pairs = score_pairs(bundle.schema, TwoTowerServing.load(bundle, threads=1), examples)
    with torch.no_grad():
        logits = forward(run.model, gather(examples, np.arange(len(examples)))).numpy()
    served, trained = (1 / (1 + np.exp(-values)) for values in (pairs.student, logits.astype(np.float64)))
    np.testing.assert_allclose(served, trained, rtol=0, atol=SCORE_TOLERANCE)


def test_objectives_pay_for_their_task(bundle: Bundle, examples: Examples) -> None:
    pairs = score_pairs(bundle.schema, TwoTowerServing.load(bundle, threads=1), examples)
    heads = {"click": 0, "conversion": 1, "impression": 2}
    names = [examples.summary.objective_names[code] for code in examples.objective]
    np.testing.assert_array_equal(pairs.pays_for, [heads[name] for name in names])
    unnamed = replace(examples, objective=np.full(len(examples), -1, np.int8))
    none = score_pairs(bundle.schema, TwoTowerServing.load(bundle, threads=1), unnamed)
    np.testing.assert_array_equal(none.pays_for, 0)


def test_evaluation_names_what_it_compares(evaluation: Evaluation, bundle: Bundle, examples: Examples) -> None:
    assert evaluation.bundle == bundle.manifest.version
    assert evaluation.scenario == "shopping"
    assert evaluation.teacher_version == evaluation.trained_on == bundle.manifest.teacher_version
    assert (evaluation.requests, evaluation.pairs) == (120, len(examples))
    assert (evaluation.first, evaluation.last) == ("2026-03-01T00:10:00Z", "2026-03-03T13:10:00Z")


def test_every_stage_head_and_column_is_measured(evaluation: Evaluation) -> None:
    names = {(row.stage, row.slice, row.head) for row in evaluation.slices}
    for stage in ("winners", "candidates", "eligible"):
        for column in ("all", "scenario", "objective", "day", "country", "price"):
            for head in ("click", "conversion"):
                assert (stage, column, head) in names
    for head in ("click", "conversion"):
        student = evaluation.metrics("winners", head, against="labels")
        teacher = evaluation.metrics("winners", head, model="teacher", against="labels")
        assert student is not None
        assert teacher is not None
        assert student.rows == teacher.rows


def test_recall_is_measured_on_the_whole_pools(evaluation: Evaluation) -> None:
    recall = evaluation.recall
    assert recall is not None
    assert (recall.requests, recall.pool_size, recall.top_k) == (3, (60, 60), 5)
    assert recall.at(UTILITY, STUDENT, 20) > 0.8
    assert 100 in recall.survivors


def test_a_window_without_requests_is_refused(bundle: Bundle, log: LogPaths) -> None:
    with pytest.raises(LogError, match="no request of scenario shopping from 2027-01-01"):
        evaluate_bundles([bundle], [log], start=datetime(2027, 1, 1, tzinfo=UTC), threads=1)


def test_an_unknown_column_is_refused(bundle: Bundle, log: LogPaths) -> None:
    with pytest.raises(InputError, match="slice tab: no such column"):
        evaluate_bundles([bundle], [log], columns=["tab"], threads=1)


def test_json_and_parquet_hold_the_same_slices(evaluation: Evaluation, tmp_path: Path) -> None:
    write_report(Report(evaluations=[evaluation], comparisons=[]), tmp_path / "report")
    (saved,) = msgspec.json.decode((tmp_path / "report" / "report.json").read_bytes())["evaluations"]
    table = pq.read_table(tmp_path / "report" / "slices.parquet").to_pylist()
    assert len(saved["slices"]) == len(table) == len(evaluation.slices)
    for row, saved_row in zip(table, saved["slices"], strict=True):
        bounds = saved_row.pop("intervals")
        flat = {
            f"{name}_{side}": bound
            for name, both in bounds.items()
            for side, bound in zip(("low", "high"), both, strict=True)
        }
        where = {name: saved[name] for name in ("bundle", "scenario", "log")}
        assert {name: None if value != value else value for name, value in row.items()} == where | saved_row | flat
    assert saved["recall"]["survivors"] == list(evaluation.recall.survivors if evaluation.recall else [])


def test_headline_has_the_figures_that_decide(evaluation: Evaluation) -> None:
    figures = headline(evaluation)
    assert figures["KL on winners, click"] < 0.05
    assert figures["heavy top 5 within 100, equal bids, conversion"] == 1.0  # pools of 60 survive whole
    assert figures["heavy top 5 within 100, utility"] == 1.0


def test_the_page_shows_the_numbers(evaluation: Evaluation) -> None:
    html = render_html(Report(evaluations=[evaluation], comparisons=[]))
    row = evaluation.metrics("winners", "click")
    assert row is not None
    low, high = row.intervals["kl"]
    assert f"{low:.{decimals(low, high)}f} to {high:.{decimals(low, high)}f}" in html
    assert evaluation.bundle in html
    assert "3 requests whose whole eligible pool the teacher scored, 60 ads each" in html
