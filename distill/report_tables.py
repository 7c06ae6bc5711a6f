"""Tables of the report as rows of cells that carry what they are sorted by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distill.measures import SliceMetrics
from distill.recall import STUDENT, RecallCurve
from distill.report_metrics import (
    BY_KEY,
    METRICS,
    Metric,
    format_with_interval,
    stands_out,
)
from distill.report_plots import Named
from distill.slice_defaults import STUDENT_DAYS, TEACHER_DAYS, TRAINED, UNSEEN
from distill.slices import ALL

OUTLIERS = 15
"""Rows of the table of slices that stand out."""

_OUTLIER_METRICS = ("kl", "calibration")
_SEEN_BY = {TEACHER_DAYS: "teacher", STUDENT_DAYS: "student"}
_UNDEFINED = (math.nan, math.nan)


@dataclass(frozen=True)
class Column:
    """A heading; ``text`` columns stand left and sort by their text."""

    label: str
    text: bool = False
    help: str = ""


@dataclass(frozen=True)
class Cell:
    """What a cell shows, a softer note under it, its CSS classes, and its sort key: None sorts by the text."""

    text: str
    note: str = ""
    classes: str = ""
    sort: float | str | None = None


@dataclass(frozen=True)
class Table:
    """A caption, headings, and rows as long as these; the first cell of a row names it."""

    caption: str
    columns: list[Column]
    rows: list[list[Cell]]


def number_cell(
    value: float,
    interval: Sequence[float] = _UNDEFINED,
    *,
    percent: bool = False,
    digits: int = 4,
    tone: str = "",
) -> Cell:
    """A number with its interval; a dash that sorts last where it is undefined."""
    text, note = format_with_interval(value, interval, percent=percent, digits=digits)
    return Cell(text, note, tone, f"{value:.9g}" if math.isfinite(value) else "")


def text_cell(text: str, note: str = "") -> Cell:
    """A text."""
    return Cell(text, note, classes="text")


def count_cell(value: int) -> Cell:
    """A number of rows or requests."""
    return Cell(f"{value:,}", sort=float(value))


def metric_cell(row: SliceMetrics, metric: Metric) -> Cell:
    """A metric of a slice."""
    return number_cell(getattr(row, metric.key), interval_of(row, metric.key))


def interval_of(row: SliceMetrics, key: str) -> tuple[float, float]:
    """A metric's interval; NaN at both ends where it has none."""
    return row.intervals.get(key, _UNDEFINED)


def metric_columns() -> list[Column]:
    """A column for each metric."""
    return [Column(metric.label, help=metric.help) for metric in METRICS]


def stages_table(students: Sequence[Named]) -> Table:
    """Every metric of whole stages; the teacher's own once."""
    rows = [
        [Cell(row.stage, f"{row.head}, {series_name(row, student.name)}"), count_cell(row.rows)]
        + [metric_cell(row, metric) for metric in METRICS]
        for number, student in enumerate(students)
        for row in student.evaluation.slices
        if row.slice == ALL and (number == 0 or row.model == "student")
    ]
    return Table("Whole stages", [Column("stage", True), Column("rows"), *metric_columns()], rows)


def funnel_table(students: Sequence[Named]) -> Table:
    """Recall, utility lost and regret at every number of survivors."""
    reports = [(student, student.evaluation.recall) for student in students if student.evaluation.recall is not None]
    survivors = reports[0][1].survivors if reports else []
    columns = [Column("ranking", True), Column("figure", True)]
    rows = [
        _curve_row(student.name if student.name and curve.ranking == STUDENT else curve.ranking, curve, figure)
        for number, (student, recall) in enumerate(reports)
        for curve in recall.curves
        for figure in ("recall", "utility_lost", "regret")
        if getattr(curve, figure) and (number == 0 or curve.ranking == STUDENT)
    ]
    return Table("By number of survivors", columns + [Column(f"{m:,}") for m in survivors], rows)


def days_table(students: Sequence[Named]) -> Table | None:
    """KL on days that trained the teacher or the student beside unseen ones; None where the log has not both."""
    columns = [Column("stage", True), Column("who trained", True), Column("trained days"), Column("unseen days")]
    rows = []
    for student in students:
        both = {cut for cut, values in _seen_values(student).items() if len(values) > 1}
        own = [row for row in student.evaluation.slices if row.slice in both and row.against == "teacher"]
        found = {(row.slice, row.stage, row.head, row.value): row for row in own}
        for cut, stage, head in dict.fromkeys((row.slice, row.stage, row.head) for row in own):
            trained, unseen = (found.get((cut, stage, head, value)) for value in (TRAINED, UNSEEN))
            ratio = unseen.kl / trained.kl if trained and unseen and trained.kl > 0 else math.nan
            kl = [metric_cell(row, BY_KEY["kl"]) if row else number_cell(math.nan) for row in (trained, unseen)]
            name = Cell(stage, ", ".join(filter(None, (head, student.name))))
            rows.append([name, text_cell(_SEEN_BY[cut]), *kl, number_cell(ratio, digits=3)])
    return Table("KL from the teacher", [*columns, Column("unseen over trained")], rows) if rows else None


def days_notes(students: Sequence[Named]) -> list[str]:
    """A sentence instead of rows, where all requests are days that trained a model, or none is."""
    notes = []
    for student in students:
        for cut, values in _seen_values(student).items():
            who = "the teacher" if cut == TEACHER_DAYS else student.name or "the student"
            if values == {UNSEEN}:
                notes.append(f"Every request is later than what trained {who}.")
            elif values == {TRAINED}:
                notes.append(f"No request is later than what trained {who}: it has seen all of these days.")
    return list(dict.fromkeys(notes))


def _seen_values(student: Named) -> dict[str, set[str]]:
    """Of the teacher and the student: which of ``trained`` and ``unseen`` days the log has."""
    found: dict[str, set[str]] = {}
    for row in student.evaluation.slices:
        if row.slice in _SEEN_BY:
            found.setdefault(row.slice, set()).add(row.value)
    return found


def outliers_table(students: Sequence[Named]) -> Table:
    """Slices whose KL or calibration is worse than the whole stage's by more than chance, furthest first."""
    columns = [Column("slice", True), Column("metric", True), Column("here"), Column("whole stage")]
    far = [(student, *item) for student in students for item in _far(student)]
    found = sorted(far, key=lambda item: -item[1])
    rows = [
        [
            Cell(row.value, f"{row.slice}: {', '.join(filter(None, (row.stage, row.head, student.name)))}"),
            text_cell(metric.label, f"against {row.against}"),
            number_cell(getattr(row, metric.key), interval_of(row, metric.key), tone="bad"),
            number_cell(getattr(whole, metric.key), interval_of(whole, metric.key)),
            count_cell(row.rows),
            count_cell(row.requests),
        ]
        for student, _, row, whole, metric in found[:OUTLIERS]
    ]
    caption = f"The furthest {len(rows)} of {len(found):,}"
    return Table(caption, [*columns, Column("rows"), Column("requests")], rows)


def series_name(row: SliceMetrics, name: str = "") -> str:
    """Whose predictions against what: ``student against teacher``."""
    model = name if name and row.model == "student" else row.model
    return f"{model} against {row.against}"


def whole_stages(rows: Sequence[SliceMetrics]) -> dict[tuple[str, str, str, str], SliceMetrics]:
    """Rows of whole stages by stage, head, model and what they are held against."""
    return {(row.stage, row.head, row.model, row.against): row for row in rows if row.slice == ALL}


def worse_than_whole(row: SliceMetrics, whole: SliceMetrics | None, metric: Metric) -> bool:
    """Whether a slice stands out in a metric, by more than its interval."""
    if whole is None or row.slice == ALL:
        return False
    return stands_out(metric.better, interval_of(row, metric.key), getattr(whole, metric.key))


def _curve_row(name: str, curve: RecallCurve, figure: str) -> list[Cell]:
    values = getattr(curve, figure)
    undefined = [math.nan] * len(values)
    low, high = getattr(curve, f"{figure}_low") or undefined, getattr(curve, f"{figure}_high") or undefined
    cells = [
        number_cell(value, ends, percent=figure != "recall", digits=3)
        for value, *ends in zip(values, low, high, strict=True)
    ]
    return [Cell(name, curve.order), text_cell(figure.replace("_", " ")), *cells]


def _far(student: Named) -> list[tuple[float, SliceMetrics, SliceMetrics, Metric]]:
    """How far the near end of its interval is from the whole's value (from 1 for calibration), as a log ratio."""
    wholes = whole_stages(student.evaluation.slices)
    found: list[tuple[float, SliceMetrics, SliceMetrics, Metric]] = []
    seen = set()
    for row in student.evaluation.slices:
        whole = wholes.get((row.stage, row.head, row.model, row.against))
        same_pairs = (row.stage, row.head, row.model, row.against, row.rows, row.requests, row.normalised_entropy)
        if same_pairs in seen:  # entropy over that of the mean is equal to the last digit of the same pairs alone
            continue
        seen.add(same_pairs)
        for metric in map(BY_KEY.__getitem__, _OUTLIER_METRICS):
            if whole is None or row.model != "student" or not worse_than_whole(row, whole, metric):
                continue
            low, high = interval_of(row, metric.key)
            reference = 1.0 if metric.better == "one" else getattr(whole, metric.key)
            near = low if low > reference else high
            distance = abs(math.log(near / reference)) if near > 0 and reference > 0 else math.inf
            found.append((distance, row, whole, metric))
    return found
