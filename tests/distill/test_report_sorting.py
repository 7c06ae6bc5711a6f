"""The tables of the page in a headless Chromium sort and filter as the numbers of the report say."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distill.compare import SliceDifference
from distill.evaluate import Report
from distill.measures import SliceMetrics
from distill.report import render_html
from distill.report_metrics import METRICS

pytestmark = pytest.mark.apt

DESK = 1280
STAGES, SLICES = "#part-1-stages ~ .scroll table", "#slice-table"
TEXTS = ("value 10", "value 9", "other", "日本")
AUC, CALIBRATION = "3", "5"
"""Positions in the control that picks the metric drawn."""


@pytest.fixture(scope="module")
def report(make_report: ModuleType) -> Report:
    return make_report.make_report(texts=TEXTS)


def _selected(report: Report, **wanted: str) -> list[SliceMetrics]:
    rows = (row for row in report.evaluations[0].slices if row.slice != "all")
    return [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


def _places(rows: list[SliceMetrics] | list[SliceDifference]) -> list[str]:
    return sorted(row.value for row in rows)


def _rounding(rows: list[SliceMetrics], metric: str) -> float:
    """Numbers are shown to two digits of their interval's width."""
    return max(row.intervals[metric][1] - row.intervals[metric][0] for row in rows) / 20


@pytest.mark.parametrize("key", ["", "Enter", " "], ids=["mouse", "enter", "space"])
def test_numbers_sort_both_ways_by_mouse_and_keyboard(
    browser: Any, report_browser: ModuleType, file: Path, key: str
) -> None:
    browser.open(file, width=DESK)
    before = browser.rows(STAGES)
    for order, reverse in (("descending", True), ("ascending", False)):
        assert browser.sort(STAGES, 2, key=key) == order
        rows = browser.rows(STAGES)
        found = [report_browser.number(row[2]) for row in rows]
        known = [value for value in found if not math.isnan(value)]
        assert known == sorted(known, reverse=reverse)
        assert all(math.isnan(value) for value in found[len(known) :])
        assert 0 < len(known) < len(found)
        assert sorted(rows) == sorted(before)
    browser.sort(STAGES, 1, key=key)
    assert browser.orders(STAGES)[:4] == ["none", "descending", "none", "none"]


def test_texts_sort_as_people_count(browser: Any, file: Path) -> None:
    browser.open(file, width=DESK)
    browser.choose("slice", "text")
    assert browser.sort(SLICES, 0) == "ascending"
    assert browser.names() == ["other", "value 9", "value 10", "日本"]
    assert browser.sort(SLICES, 0) == "descending"
    assert browser.names() == ["日本", "value 10", "value 9", "other"]


def test_the_table_of_all_slices_sorts_by_every_metric(
    browser: Any, report_browser: ModuleType, file: Path, report: Report
) -> None:
    browser.open(file, width=DESK)
    expected = _selected(report, stage="candidates", head="click", model="student", against="teacher")
    assert sorted(browser.names()) == _places(expected)
    for column, metric in enumerate(METRICS, 4):
        assert browser.sort(SLICES, column) == "descending"
        found = [report_browser.number(row[column]) for row in browser.rows()]
        values = sorted((getattr(row, metric.key) for row in expected), reverse=True)
        assert found == pytest.approx(values, abs=_rounding(expected, metric.key))


def test_the_table_of_all_slices_filters(browser: Any, file: Path, report: Report) -> None:
    browser.open(file)
    browser.choose("stage", "winners")
    browser.choose("series", "teacher against labels")
    teacher = {"stage": "winners", "model": "teacher", "against": "labels"}
    assert sorted(browser.names()) == _places(_selected(report, head="click", **teacher))
    assert {row[4] for row in browser.rows()} == {"\u2013"}  # there is no KL from labels
    browser.choose("head", "")
    assert sorted(browser.names()) == _places(_selected(report, **teacher))
    browser.choose("slice", "column_1")
    assert sorted(browser.names()) == _places(_selected(report, slice="column_1", **teacher))
    browser.choose("slice", "")
    browser.choose("text", "VALUE 10")
    assert browser.names() == ["value 10"] * 2
    assert browser.run("document.getElementById('slice-count').textContent") == "2 slices"


def test_only_what_stands_out(browser: Any, file: Path, report: Report) -> None:
    browser.open(file)
    browser.choose("metric", CALIBRATION)
    browser.run("document.getElementById('pick-only').click()")
    rows = _selected(report, stage="candidates", head="click", model="student", against="teacher")
    off = [row for row in rows if row.intervals["calibration"][0] > 1 or row.intervals["calibration"][1] < 1]
    assert sorted(browser.names()) == _places(off)
    assert browser.count("#slice-table .forest") == browser.count("#slice-table .forest.bad") == len(off)


def test_differences_lead_with_the_worst(browser: Any, report_browser: ModuleType, file: Path, report: Report) -> None:
    browser.open(file, width=DESK)
    browser.choose("set", "2")
    browser.choose("metric", AUC)
    where = ("candidates", "click", "auc", "teacher")
    rows = [row for row in report.comparisons[0].rows if (row.stage, row.head, row.metric, row.against) == where]
    expected = sorted((row for row in rows if row.slice != "all"), key=lambda row: row.difference)
    found = [report_browser.number(row[7]) for row in browser.rows()]
    assert found == pytest.approx(
        [row.difference for row in expected], abs=max(row.high - row.low for row in expected) / 20
    )
    marks = browser.run("[...document.querySelectorAll('#slice-table td:nth-child(8)')].map(cell => cell.className)")
    tones = {"worse": "bad", "better": "good", "unclear": ""}
    assert sorted(marks) == sorted(tones[row.verdict] for row in expected)
    assert marks[0] == tones[expected[0].verdict]


def test_ten_thousand_rows_are_shown_a_page_at_a_time(
    browser: Any, report_browser: ModuleType, make_report: ModuleType, tmp_path: Path
) -> None:
    large = make_report.make_report(scenarios=2, columns=15, values=20)
    path = tmp_path / "report.html"
    path.write_text(render_html(large), encoding="utf-8")
    browser.open(path)
    assert browser.page.complaints() == []
    assert browser.overflow() <= 0
    browser.choose("stage", "")
    browser.choose("head", "")
    expected = _selected(large, model="student", against="teacher")
    count = browser.run("document.getElementById('slice-count').textContent")
    assert count == f"{len(expected):,} slices, the first 100 shown"
    browser.run("document.getElementById('more').click()")
    found = [report_browser.number(row[4]) for row in browser.rows()]
    worst = sorted((row.kl for row in expected), reverse=True)[:200]
    assert found == pytest.approx(worst, abs=_rounding(expected, "kl"))
