"""The report's page, JSON and Parquet say what the evaluation found, and nothing of a log can break them."""

import base64
import json
import math
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from distill.evaluate import Evaluation, Report
from distill.report import headline, render_html, write_report
from distill.report_metrics import METRICS, decimals
from distill.report_sections import Section, build_section, report_groups
from distill.report_tables import OUTLIERS, outliers_table
from distill.report_verdict import SHOWN_DIFFERENCES, judge_comparison, judge_student

ATTACK = "<script>alert('x')</script>"
TEXTS = (ATTACK, "</script><b>", "x" * 500, "日本", 'a & "b"')


@pytest.fixture(scope="module")
def report(make_report: ModuleType) -> Report:
    return make_report.make_report(texts=TEXTS)


@pytest.fixture(scope="module")
def evaluation(report: Report) -> Evaluation:
    return report.evaluations[0]


class _Page(HTMLParser):
    """Collects what a browser would fetch and the text of cells, and checks that tags are closed."""

    VOID = frozenset({"meta", "link", "img", "br", "input", "line", "circle", "polyline", "polygon"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.counts: dict[str, int] = {}
        self.cells: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def _explored(html: str) -> dict[str, Any]:
    """The data of the table of all slices, out of the page."""
    found = re.search(r'id="slice-data">([A-Za-z0-9+/=]*)</script>', html)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def test_all_evaluations_are_written(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path / "report")
    saved = msgspec.json.decode((tmp_path / "report" / "report.json").read_bytes())
    assert len(saved["comparisons"]) == len(report.comparisons)
    rows = pq.read_table(tmp_path / "report" / "slices.parquet", columns=["bundle", "value", "rows"]).to_pylist()
    expected = [
        {"bundle": one.bundle, "value": row.value, "rows": row.rows} for one in report.evaluations for row in one.slices
    ]
    assert rows == expected
    assert (tmp_path / "report" / "report.html").read_text() == render_html(report)


def test_the_page_is_whole_and_fetches_nothing(report: Report) -> None:
    html = render_html(report)
    page = _Page(html)
    assert page.open == []
    assert all(address.startswith("#") for address in page.fetched)
    assert {address[1:] for address in page.fetched} <= set(re.findall(r'id="([^"]+)"', html))
    assert not re.search(r"url\(|@import|https?://", html)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in html


def test_every_plot_of_a_section_is_drawn(report: Report) -> None:
    section = build_section(report_groups(report)[0], 1)
    page = _Page(render_html(report))
    plots = [*section.funnel_plots.main, *section.funnel_plots.others, *section.reliability_plots]
    assert len(section.funnel_plots.main) == 3 + 2  # recall in three orders, utility lost and regret in the first
    assert len(section.funnel_plots.others) == 2 * 2  # both losses, at equal bids of two heads
    assert len(section.reliability_plots) == 3 * 2
    lines = sum(len(plot.lines) for plot in plots)
    assert page.counts["figure"] == len(plots) + 1  # and the one that the script copies
    assert page.counts["polyline"] == lines + 1
    assert page.counts["polygon"] == sum(bool(line.band) for plot in plots for line in plot.lines)


def test_texts_of_the_log_are_escaped_everywhere(report: Report) -> None:
    image = "<img src=x>&"
    hostile = msgspec.structs.replace(
        report,
        evaluations=[
            msgspec.structs.replace(one, scenario=image, log=image, teacher_version=image, bundle=image + one.bundle)
            for one in report.evaluations
        ],
        comparisons=[
            msgspec.structs.replace(one, scenario=image, log=image, bundle=image + one.bundle, against=image)
            for one in report.comparisons
        ],
    )
    html = render_html(hostile)
    for text in (ATTACK, "</script><b>", "<img src=x>"):
        assert text not in html
    assert _Page(html).open == []
    assert set(TEXTS) <= set(_explored(html)["strings"])
    assert "&lt;img src=x&gt;&amp;" in html


def test_the_data_of_the_page_are_the_slices(report: Report) -> None:
    data = _explored(render_html(report))
    assert [metric["key"] for metric in data["metrics"]] == [metric.key for metric in METRICS]
    first, _, changes = data["sets"]
    for at, row in enumerate(report.evaluations[0].slices):
        for name in ("stage", "slice", "value", "head"):
            assert data["strings"][first[name][at]] == getattr(row, name)
        assert (first["rows"][at], first["requests"][at]) == (row.rows, row.requests)
        for metric in METRICS:
            value, (low, high) = getattr(row, metric.key), row.intervals[metric.key]
            found = [first[metric.key + end][at] for end in ("", "_low", "_high")]
            if math.isnan(value):
                assert found == [None] * 3
            else:
                assert found == pytest.approx([value, low, high], abs=0.05 * (high - low))
    differences = {(r.stage, r.slice, r.value, r.head, r.against, r.metric): r for r in report.comparisons[0].rows}
    seen = 0
    for at in range(len(changes["value"])):
        place = [data["strings"][changes[name][at]] for name in ("stage", "slice", "value", "head", "series")]
        for bit, metric in enumerate(METRICS):
            row = differences.get((*place[:4], place[4].removeprefix("student against "), metric.key))
            worse, improved = changes["worse"][at] >> bit & 1, changes["improved"][at] >> bit & 1
            if row is None:
                assert (changes[metric.key][at], worse, improved) == (None, 0, 0)
                continue
            seen += 1
            assert changes[metric.key][at] == pytest.approx(row.difference, abs=0.05 * (row.high - row.low))
            assert (bool(worse), bool(improved)) == (row.verdict == "worse", row.verdict == "better")
    assert seen == len(differences)


def test_reliability_curves_travel_with_their_slice(report: Report) -> None:
    data = _explored(render_html(report))
    one = report.evaluations[1]
    curves = {(c.stage, c.slice, c.value, c.head, c.against): c for c in one.reliability}
    for at, row in enumerate(one.slices):
        curve = curves[(row.stage, row.slice, row.value, row.head, row.against)]
        for name in ("predicted", "observed"):
            expected = pytest.approx(getattr(curve, name), rel=6e-3) if row.model == "student" else None
            assert data["sets"][1][name][at] == expected


def _flags(evaluation: Evaluation) -> list[list[bool]]:
    """The slow way: the interval lies on the worse side of the whole stage's value, or leaves out 1."""
    found = []
    for row in evaluation.slices:
        flags = []
        for metric in METRICS:
            low, high = row.intervals[metric.key]
            whole = next(
                getattr(one, metric.key)
                for one in evaluation.slices
                if (one.slice, one.stage, one.head, one.model, one.against)
                == ("all", row.stage, row.head, row.model, row.against)
            )
            outside = {"lower": low > whole, "higher": high < whole, "one": low > 1 or high < 1}[metric.better]
            flags.append(outside and row.slice != "all")
        found.append(flags)
    return found


def test_slices_that_stand_out_are_marked_and_listed(report: Report, evaluation: Evaluation) -> None:
    worse = _explored(render_html(report))["sets"][0]["worse"]
    flags = _flags(evaluation)
    assert [[bool(bits >> place & 1) for place in range(len(METRICS))] for bits in worse] == flags
    kl, calibration = (
        next(p for p, metric in enumerate(METRICS) if metric.key == key) for key in ("kl", "calibration")
    )
    expected = sum(
        row[kl] + row[calibration] for row, one in zip(flags, evaluation.slices, strict=True) if one.model == "student"
    )
    assert expected > OUTLIERS
    table = outliers_table(report_groups(Report(evaluations=[evaluation], comparisons=[]))[0].students)
    assert table.caption == f"The furthest {OUTLIERS} of {expected}"
    assert len(table.rows) == OUTLIERS


@pytest.mark.parametrize(
    ("interval", "tone", "word"),
    [((0.971, 0.99), "good", "met"), ((0.9, 0.969), "bad", "missed"), ((0.96, 0.98), "unclear", "undecided")],
)
def test_an_aim_is_met_or_missed_by_the_whole_interval(
    evaluation: Evaluation, interval: tuple[float, float], tone: str, word: str
) -> None:
    recall = evaluation.recall
    assert recall is not None
    many = len(recall.survivors)
    curves = [
        msgspec.structs.replace(
            curve, recall=[sum(interval) / 2] * many, recall_low=[interval[0]] * many, recall_high=[interval[1]] * many
        )
        for curve in recall.curves
    ]
    changed = msgspec.structs.replace(evaluation, recall=msgspec.structs.replace(recall, curves=curves))
    tile = next(tile for tile in judge_student(changed).tiles if tile.name.endswith("equal bids, click"))
    assert (tile.tone, tile.note) == (tone, f"{word}: aim at least 0.97")
    assert tile.interval.startswith(f"{interval[0]:.3f}")


def test_nothing_is_judged_where_nothing_is_cut(evaluation: Evaluation) -> None:
    recall = evaluation.recall
    assert recall is not None
    small = msgspec.structs.replace(evaluation, recall=msgspec.structs.replace(recall, pool_size=(60, 100)))
    tiles = [tile for tile in judge_student(small).tiles if "100" in tile.name]
    assert len(tiles) == 4
    assert {(tile.tone, tile.note) for tile in tiles} == {("", "nothing is cut: pools of at most 100 ads")}
    assert "of 2 aims met" in judge_student(small).summary  # those of calibration


def test_calibration_is_judged_on_labels_where_there_are_any(evaluation: Evaluation) -> None:
    without = msgspec.structs.replace(evaluation, slices=[r for r in evaluation.slices if r.against == "teacher"])
    names = [[tile.name for tile in judge_student(one).tiles] for one in (evaluation, without)]
    assert "calibration to labels of winners, click" in names[0]
    assert "calibration to teacher on candidates, click" in names[1]


def test_a_comparison_leads_with_what_got_worse(report: Report) -> None:
    comparison = report.comparisons[0]
    verdict = judge_comparison(comparison, "student B", "student A")
    kl = next(
        row
        for row in comparison.rows
        if (row.stage, row.slice, row.head, row.metric) == ("candidates", "all", "click", "kl")
    )
    tile = next(tile for tile in verdict.tiles if tile.name == "KL on candidates, click")
    places = decimals(100 * kl.low / kl.before, 100 * kl.high / kl.before)
    assert tile.value.replace("\u2212", "-") == f"{100 * kl.difference / kl.before:+.{places}f} %"
    assert tile.tone == {"worse": "bad", "better": "good", "unclear": ""}[kl.verdict]
    counts = {name: sum(r.verdict == name for r in comparison.rows) for name in ("worse", "better")}
    assert f"{counts['better']:,} are significantly better and {counts['worse']:,} worse" in verdict.summary
    assert [row[0].text for row in verdict.worse.rows] == [row.value for row in comparison.rows[:SHOWN_DIFFERENCES]]
    assert verdict.worse.rows[0][2].classes == "bad"


def test_a_better_whole_is_not_good_while_slices_get_worse(report: Report) -> None:
    tones = []
    for every in (40, 10):
        rows = [
            msgspec.structs.replace(row, verdict="worse" if row.slice != "all" and number % every == 0 else "better")
            for number, row in enumerate(report.comparisons[0].rows)
        ]
        changed = msgspec.structs.replace(report.comparisons[0], rows=rows, recall=[])
        tones.append(judge_comparison(changed, "B", "A").tone)
    assert tones == ["good", "unclear"]


def test_figures_that_differ_by_rounding_alone_are_the_same(report: Report) -> None:
    noise = -7.5e-18
    rows = [
        msgspec.structs.replace(row, before=noise, after=noise, difference=0.0, low=noise, high=-noise)
        for row in report.comparisons[0].recall
    ]
    verdict = judge_comparison(msgspec.structs.replace(report.comparisons[0], recall=rows), "B", "A")
    (tile,) = [tile for tile in verdict.tiles if tile.name == "utility lost at 100"]
    assert (tile.value, tile.interval, tile.note, tile.tone) == ("same", "", "0 % for both", "")


def test_days_of_one_kind_are_a_sentence(evaluation: Evaluation) -> None:
    def section(**values: tuple[str, ...]) -> Section:
        row = next(row for row in evaluation.slices if row.against == "teacher")
        days = [
            msgspec.structs.replace(row, slice=f"{who} days", value=value)
            for who, found in values.items()
            for value in found
        ]
        report = Report(evaluations=[msgspec.structs.replace(evaluation, slices=days)], comparisons=[])
        return build_section(report_groups(report)[0], 1)

    unseen = section(teacher=("unseen",), student=("trained",))
    assert unseen.days is None
    assert unseen.days_notes == [
        "Every request is later than what trained the teacher.",
        "No request is later than what trained the student: it has seen all of these days.",
    ]
    mixed = section(teacher=("trained", "unseen"), student=("unseen",))
    assert mixed.days is not None
    assert [row[1].text for row in mixed.days.rows] == ["teacher"]
    assert mixed.days_notes == ["Every request is later than what trained the student."]
    assert section().days_notes == []


def test_slices_of_the_same_pairs_stand_out_once(evaluation: Evaluation) -> None:
    students = report_groups(Report(evaluations=[evaluation], comparisons=[]))[0].students
    copies = [msgspec.structs.replace(row, slice="copy") for row in evaluation.slices]
    doubled = msgspec.structs.replace(evaluation, slices=[*evaluation.slices, *copies])
    again = report_groups(Report(evaluations=[doubled], comparisons=[]))[0].students
    assert outliers_table(again) == outliers_table(students)


def test_students_side_by_side_are_told_apart(report: Report, make_report: ModuleType) -> None:
    group = report_groups(report)[0]
    assert [one.name for one in group.students] == ["student A", "student B"]
    recall = build_section(group, 1).funnel_plots.main[1]
    assert [line.name for line in recall.lines] == ["student A", "student B", "bid x historical rate", "random"]
    two = make_report.make_report(scenarios=2, bundles=1)
    assert [group.title for group in report_groups(two)] == ["standard", "shopping"]
    logs = [
        msgspec.structs.replace(one, log=f"/logs/{n}", scenario="standard") for n, one in enumerate(two.evaluations)
    ]
    groups = report_groups(Report(evaluations=logs, comparisons=[]))
    assert [group.title for group in groups] == ["standard on 0", "standard on 1"]


def test_headline_has_the_figures_that_decide(evaluation: Evaluation) -> None:
    figures = headline(evaluation)
    row, recall = evaluation.metrics("winners", "click"), evaluation.recall
    assert row is not None
    assert recall is not None
    assert figures["KL on winners, click"] == row.kl
    assert figures["heavy top 10 within 100, utility"] == recall.at("utility", "student", 100)


def test_a_report_without_whole_pools_says_so(evaluation: Evaluation) -> None:
    without = msgspec.structs.replace(evaluation, recall=None)
    html = render_html(Report(evaluations=[without], comparisons=[]))
    assert "so recall cannot be measured here" in html
    assert not [name for name in headline(without) if "heavy top" in name]


def test_a_report_without_intervals_marks_nothing(evaluation: Evaluation) -> None:
    bare = msgspec.structs.replace(
        evaluation, slices=[msgspec.structs.replace(row, intervals={}) for row in evaluation.slices]
    )
    html = render_html(Report(evaluations=[bare], comparisons=[]))
    assert not any(_explored(html)["sets"][0]["worse"])
    assert "Slices that stand out" not in html


def test_undefined_metrics_are_dashes(evaluation: Evaluation) -> None:
    lost = [msgspec.structs.replace(row, kl=math.nan, auc=math.nan, intervals={}) for row in evaluation.slices]
    html = render_html(Report(evaluations=[msgspec.structs.replace(evaluation, slices=lost)], comparisons=[]))
    assert "nan" not in _Page(html).cells
    assert html.count('<td data-sort="">\u2013</td>') >= 2 * len([row for row in lost if row.slice == "all"])


def test_another_teacher_is_pointed_out(evaluation: Evaluation) -> None:
    other = msgspec.structs.replace(evaluation, trained_on="t-1")
    pages = [render_html(Report(evaluations=[one], comparisons=[])) for one in (evaluation, other)]
    assert "distilled from another teacher" not in pages[0]
    assert "distilled from another teacher, t-1" in pages[1]


def test_ten_thousand_rows_fit_into_three_megabytes(make_report: ModuleType) -> None:
    large = make_report.make_report(columns=15, values=8)
    rows = sum(len(one.slices) for one in large.evaluations)
    assert rows > 2_000
    assert len(render_html(large).encode()) / rows < 3_000_000 / 10_000
