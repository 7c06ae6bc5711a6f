"""The page in a headless Chromium: without a network, on a phone, in light and dark, without script, printed."""

import base64
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from distill.evaluate import Report
from distill.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from distill.report import render_html

pytestmark = pytest.mark.apt

PHONE, DESK = 360, 1280
READABLE = 4.5
"""Least contrast of text by WCAG 2.1, level AA."""

ATTACK = '<img src=x onerror="window.attacked = 1"></script><script>window.attacked = 1</script>'
TEXTS = (ATTACK, "x" * 500, "日本")

DRAWINGS = """[...document.querySelectorAll("figure > svg")].map(drawing => {
  const box = drawing.getBoundingClientRect(), texts = [...drawing.querySelectorAll("text")].map(
    text => text.getBoundingClientRect());
  const inside = one => one.left >= box.left - 1 && one.right <= box.right + 1 && one.bottom <= box.bottom + 1;
  return [box.width, box.height, texts.every(inside)];
})"""
LINES = """[...document.querySelectorAll("figure polyline")].map(
  line => [line.getBBox().width, getComputedStyle(line).stroke])"""
CONTRASTS = """(() => {
  const part = v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
  const ground = node => {
    for (let at = node; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
    if (!text || !node.getClientRects().length || node.closest("script, style, title")) continue;
    const style = getComputedStyle(node), own = light(rgb(node.closest("svg") ? style.fill : style.color));
    const under = light(ground(node));
    found.push([(Math.max(own, under) + .05) / (Math.min(own, under) + .05), text.slice(0, 40)]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def report(make_report: ModuleType) -> Report:
    return make_report.make_report(texts=TEXTS)


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_renders_without_a_network_and_without_complaints(browser: Any, file: Path, width: int) -> None:
    browser.open(file, width=width)
    assert browser.page.requests() == [file.as_uri()]
    assert browser.page.complaints() == []
    assert browser.overflow() <= 0
    browser.open_details()
    assert browser.overflow() <= 0


def test_a_complaint_or_a_request_would_be_noticed(browser: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<script>console.error('told'); missing()</script><img src='https://example.invalid/a.png'>")
    browser.page.look(width=PHONE)
    browser.page.open(broken)
    assert browser.page.requests() == [broken.as_uri(), "https://example.invalid/a.png"]
    complaints = " ".join(browser.page.complaints())
    assert "told" in complaints
    assert "missing is not defined" in complaints


def test_plots_show(browser: Any, file: Path) -> None:
    browser.open(file)
    browser.open_details()
    drawings, lines = browser.run(DRAWINGS), browser.run(LINES)
    assert len(drawings) == 5 + 4 + 6
    assert all(width > 300 and height > 200 and inside for width, height, inside in drawings)
    assert all(width > 100 and stroke != "none" for width, stroke in lines)


def test_pointing_at_a_plot_says_its_values(browser: Any, file: Path, report: Report) -> None:
    browser.open(file)
    browser.run("document.querySelector('figure > svg').scrollIntoView({block: 'center'})")
    x, y = browser.middle("document.querySelector('figure > svg .reference')")  # it marks 100 survivors
    browser.page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    recall = report.evaluations[1].recall
    assert recall is not None
    said = browser.run("document.querySelector('.readout').textContent")
    assert f"student B: {recall.at('utility', 'student', 100):.4g} (" in said
    assert all(line.endswith("at 100") for line in said.split("\n"))


def test_a_slice_opens_its_reliability_curve(browser: Any, file: Path, report: Report) -> None:
    browser.open(file)
    name = browser.names()[0]
    browser.run("document.querySelector('#slice-table .opens').click()")
    assert browser.run("document.querySelector('#slice-table .opens').getAttribute('aria-expanded')") == "true"
    points = browser.run("document.querySelector('#slice-table polyline').getAttribute('points')").split()
    where = ("candidates", "click", name, browser.run("document.querySelector('#slice-table th small').textContent"))
    curves = report.evaluations[0].reliability
    curve = next(one for one in curves if (one.stage, one.head, one.value, one.slice) == where)
    x, y = zip(*(map(float, point.split(",")) for point in points), strict=True)
    decades = (WIDTH - RIGHT - LEFT) / (x[-1] - x[0]) * math.log10(curve.predicted[-1] / curve.predicted[0])
    assert decades == pytest.approx(round(decades), abs=0.02)
    for at in range(len(points)):
        across, up = (x[at] - LEFT) / (WIDTH - RIGHT - LEFT), (HEIGHT - BOTTOM - y[at]) / (HEIGHT - BOTTOM - TOP)
        ratio = math.log10(curve.observed[at] / curve.predicted[at])
        assert (up - across) * round(decades) == pytest.approx(ratio, abs=0.01)
    browser.run("document.querySelector('#slice-table .opens').click()")
    assert browser.count("#slice-table .curve") == 0


def test_texts_of_the_log_are_shown_and_never_run(browser: Any, file: Path) -> None:
    browser.open(file)
    browser.choose("slice", "text")
    assert sorted(browser.names()) == sorted(TEXTS)
    browser.run("document.querySelectorAll('#slice-table .opens').forEach(button => button.click())")
    assert browser.run("window.attacked") is None
    assert browser.page.complaints() == []
    assert browser.overflow() <= 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_is_readable(browser: Any, file: Path, dark: bool) -> None:
    browser.open(file, dark=dark)
    browser.open_details()
    browser.run("document.querySelector('#slice-table .opens').click()")
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") is not dark
    contrasts = browser.run(CONTRASTS)
    assert len(contrasts) > 500
    assert [found for found in contrasts if found[0] < READABLE] == []


def test_without_script_the_main_tables_stand(browser: Any, file: Path, report: Report) -> None:
    browser.open(file, script=False)
    browser.page.look(width=PHONE)  # the page was loaded without its script; now a script may look at it
    assert browser.is_shown("noscript")
    assert not browser.is_shown("#slice-table")
    assert browser.count("table.sorts") == 5
    stages = [[row for row in one.slices if row.slice == "all"] for one in report.evaluations]
    students = [row for row in stages[1] if row.model == "student"]
    assert len(browser.rows("#part-1-stages ~ .scroll table")) == len(stages[0]) + len(students)


def test_it_prints_with_everything_open_and_in_light(browser: Any, file: Path) -> None:
    browser.open(file, dark=True, width=DESK)
    assert base64.b64decode(browser.page.call("Page.printToPDF")["data"]).startswith(b"%PDF")
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.page.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run("[...document.querySelectorAll('details')].every(part => part.open)")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not browser.is_shown(".controls")
    browser.page.call("Emulation.setEmulatedMedia", media="")


def test_one_student_alone_needs_no_choice_of_report(browser: Any, make_report: ModuleType, tmp_path: Path) -> None:
    alone = make_report.make_report(bundles=1)
    bare = msgspec.structs.replace(alone.evaluations[0], recall=None)
    path = tmp_path / "report.html"
    path.write_text(render_html(Report(evaluations=[bare], comparisons=[])), encoding="utf-8")
    browser.open(path)
    assert browser.page.complaints() == []
    assert not browser.is_shown("#pick-set")
    assert "cannot be measured here" in browser.run("document.body.textContent")
