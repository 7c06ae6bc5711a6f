"""What a launch is decided by: the figures of one student against stated aims, and two students against each other."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from distill.compare import ROUNDING, Comparison, RecallDifference, SliceDifference, Verdict
from distill.evaluate import Evaluation
from distill.recall import EQUAL_BIDS, HEADLINE_SURVIVORS, STUDENT, UTILITY, RecallReport
from distill.report_metrics import (
    BY_KEY,
    UNDEFINED,
    format_number,
    format_percent,
    format_with_interval,
)
from distill.report_tables import Cell, Column, Table, count_cell, interval_of, number_cell, text_cell
from distill.slices import ALL, STAGE_SLICES

RECALL_AIM, LOST_AIM, CALIBRATION_AIM = 0.97, 0.01, 0.03
"""At equal bids and 100 survivors of 1,000 ads; share of utility lost there; distance of calibration from 1."""

SHOWN_DIFFERENCES = 20

Tone = Literal["", "good", "bad", "unclear"]

_TONES: dict[Verdict, Tone] = {"worse": "bad", "better": "good", "unclear": ""}
_NAN = (math.nan, math.nan)
_ONE_SIDE = 0.025
"""Share of intervals that lie wholly on one side of the truth by chance."""


@dataclass(frozen=True)
class Tile:
    """A figure: what it is called, its value, interval and a note; the tone colours it and is said in the note."""

    name: str
    value: str
    interval: str = ""
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class StudentVerdict:
    """The figures of one student and a sentence on its aims."""

    tone: Tone
    summary: str
    tiles: list[Tile]


@dataclass(frozen=True)
class ComparisonVerdict:
    """Two students: what changed on the whole, and the slices that got worse first."""

    title: str
    tone: Tone
    summary: str
    tiles: list[Tile]
    worse: Table


def judge_student(evaluation: Evaluation) -> StudentVerdict:
    """Recall, utility lost and calibration against the aims; KL on each stage beside them."""
    aimed = [*_recall_tiles(evaluation), *_calibration_tiles(evaluation)]
    tiles = [*aimed, *(_kl_tile(evaluation, task) for task in evaluation.tasks)]
    by_tone = {tone: [tile.name for tile in aimed if tile.tone == tone] for tone in ("bad", "unclear", "good")}
    judged = sum(map(len, by_tone.values()))
    if not judged:
        return StudentVerdict("", "This log can measure none of the figures that have an aim.", tiles)
    words = [f"{len(by_tone['good'])} of {judged} aims met."]
    words += [f"Missed: {'; '.join(by_tone['bad'])}."] if by_tone["bad"] else []
    words += [f"Undecided, the interval holds the aim: {'; '.join(by_tone['unclear'])}."] if by_tone["unclear"] else []
    tone = _first_of(("bad", "unclear", "good"), aimed)
    return StudentVerdict(tone, " ".join(words), tiles)


def judge_comparison(comparison: Comparison, after: str, before: str) -> ComparisonVerdict:
    """The later student against the earlier one: nothing is good while far more slices got worse than by chance.

    Args:
        comparison: Of both.
        after, before: What the later and the earlier student are called.
    """
    tiles = [*_recall_changes(comparison), *_whole_changes(comparison)]
    counts = Counter(row.verdict for row in comparison.rows)
    by_chance = _ONE_SIDE * counts.total()
    tone = _first_of(("bad", "good"), tiles)
    return ComparisonVerdict(
        title=f"{after} against {before}",
        tone="unclear" if tone != "bad" and counts["worse"] > 2 * by_chance else tone,
        summary=(
            f"{_tally(tiles)} Of {counts.total():,} metrics of slices and whole stages {counts['better']:,} are "
            f"significantly better and {counts['worse']:,} worse, where chance alone would make about "
            f"{by_chance:,.0f} look worse."
        ),
        tiles=tiles,
        worse=_worse_table(comparison.rows),
    )


def _recall_tiles(evaluation: Evaluation) -> Iterator[Tile]:
    recall = evaluation.recall
    if recall is None:
        return
    suffix = f"heavy top {recall.top_k} within {HEADLINE_SURVIVORS}"
    for task in evaluation.tasks:
        value, interval = _point(recall, f"{EQUAL_BIDS}, {task}", "recall")
        yield _cut_tile(recall, _aim_tile(f"{suffix}, {EQUAL_BIDS}, {task}", value, interval, low=RECALL_AIM))
    value, interval = _point(recall, UTILITY, "recall")
    yield _cut_tile(recall, Tile(f"{suffix}, {UTILITY}", *format_with_interval(value, interval)))
    value, interval = _point(recall, UTILITY, "utility_lost")
    name = f"utility lost at {HEADLINE_SURVIVORS}"
    yield _cut_tile(recall, _aim_tile(name, value, interval, high=LOST_AIM, percent=True))


def _cut_tile(recall: RecallReport, tile: Tile) -> Tile:
    """The tile, without a judgement where every ad of the pools survives."""
    if recall.pool_size[1] > HEADLINE_SURVIVORS:
        return tile
    return replace(tile, note=f"nothing is cut: pools of at most {recall.pool_size[1]} ads", tone="")


def _calibration_tiles(evaluation: Evaluation) -> Iterator[Tile]:
    """Against the labels of shown ads where there are any, else against the teacher on candidates."""
    for task in evaluation.tasks:
        on_labels = evaluation.metrics("winners", task, against="labels")
        row = on_labels or evaluation.metrics("candidates", task)
        if row is not None:
            against = "labels of winners" if on_labels else "teacher on candidates"
            yield _aim_tile(
                f"calibration to {against}, {task}",
                row.calibration,
                interval_of(row, "calibration"),
                low=1 - CALIBRATION_AIM,
                high=1 + CALIBRATION_AIM,
            )


def _kl_tile(evaluation: Evaluation, task: str) -> Tile:
    found = {stage: row for stage in STAGE_SLICES if (row := evaluation.metrics(stage, task)) is not None}
    if not found:
        return Tile(f"KL, {task}", UNDEFINED)
    stage = "candidates" if "candidates" in found else next(iter(found))
    row = found.pop(stage)
    note = ", ".join(f"{other} {format_number(one.kl, 3)}" for other, one in found.items())
    return Tile(f"KL on {stage}, {task}", *format_with_interval(row.kl, interval_of(row, "kl")), note)


def _point(recall: RecallReport, order: str, figure: str) -> tuple[float, tuple[float, float]]:
    """A figure of the student at the headline's number of survivors, and its interval."""
    curve = recall.curve(order, STUDENT)
    if curve is None or HEADLINE_SURVIVORS not in recall.survivors:
        return math.nan, _NAN
    at = recall.survivors.index(HEADLINE_SURVIVORS)
    low, high = getattr(curve, f"{figure}_low"), getattr(curve, f"{figure}_high")
    return getattr(curve, figure)[at], (low[at], high[at]) if low else _NAN


def _aim_tile(
    name: str,
    value: float,
    interval: tuple[float, float],
    *,
    low: float = -math.inf,
    high: float = math.inf,
    percent: bool = False,
) -> Tile:
    """A figure that should lie from ``low`` to ``high``: met or missed where its whole interval is on that side."""
    shown = format_percent if percent else format_number
    aim = f"{shown(low, 3)} to {shown(high, 3)}"
    aim = f"at least {shown(low, 3)}" if high == math.inf else f"at most {shown(high, 3)}" if low == -math.inf else aim
    if math.isnan(value):
        return Tile(name, UNDEFINED, note=f"aim: {aim}")
    tone, word = _against_aim(interval if all(map(math.isfinite, interval)) else (value, value), low, high)
    return Tile(name, *format_with_interval(value, interval, percent=percent), f"{word}: aim {aim}", tone)


def _against_aim(interval: tuple[float, float], low: float, high: float) -> tuple[Tone, str]:
    if low <= interval[0] and interval[1] <= high:
        return "good", "met"
    if interval[1] < low or interval[0] > high:
        return "bad", "missed"
    return "unclear", "undecided"


def _recall_changes(comparison: Comparison) -> Iterator[Tile]:
    """Recall at equal bids, then utility lost and regret in the order of utility."""
    here = [row for row in comparison.recall if row.survivors == HEADLINE_SURVIVORS]
    for row in here:
        if row.metric == "recall" and row.order != UTILITY:
            yield _change_tile(f"recall at {HEADLINE_SURVIVORS}, {row.order}", row, 1.0, percent=False)
    for row in here:
        if row.metric != "recall" and row.order == UTILITY:
            yield _change_tile(f"{row.metric.replace('_', ' ')} at {HEADLINE_SURVIVORS}", row, 1.0, percent=True)


def _whole_changes(comparison: Comparison) -> Iterator[Tile]:
    """KL of every stage and head, relative; then AUC and calibration against labels, on whole stages."""
    wholes = {(row.metric, row.against, row.stage, row.head): row for row in comparison.rows if row.slice == ALL}
    heads = sorted({head for _, _, _, head in wholes})
    for stage in ("candidates", *(stage for stage in STAGE_SLICES if stage != "candidates")):
        for head in heads:
            row = wholes.get(("kl", "teacher", stage, head))
            if row is not None and row.before > 0:
                yield _change_tile(f"KL on {stage}, {head}", row, row.before, percent=True)
    for metric, name in (("auc", "AUC"), ("calibration", "calibration's distance from 1")):
        for head in heads:
            row = wholes.get((metric, "labels", "winners", head))
            if row is not None:
                yield _change_tile(f"{name}, labels of winners, {head}", row, 1.0, percent=False)


def _change_tile(name: str, row: SliceDifference | RecallDifference, unit: float, *, percent: bool) -> Tile:
    """A difference in units of ``unit``, coloured only where significant; ``same`` where rounding alone differs."""
    shown = format_percent if percent and unit == 1.0 else format_number
    if max(map(abs, (row.difference, row.low, row.high))) < ROUNDING:
        return Tile(name, "same", note=f"{shown(row.after if abs(row.after) > ROUNDING else 0.0, 4)} for both")
    interval = (row.low / unit, row.high / unit)
    texts = format_with_interval(row.difference / unit, interval, percent=percent, sign=True)
    note = f"{row.verdict}: {shown(row.before, 4)} became {shown(row.after, 4)}"
    return Tile(name, *texts, note, _TONES[row.verdict])


def _worse_table(rows: Sequence[SliceDifference]) -> Table:
    columns = [Column("slice", True), Column("metric", True)]
    columns += [Column("worsening", help="Share that got worse; negative where better")]
    columns += [Column("difference", help="Later less earlier; of calibration, of its distance from 1")]
    columns += [Column("before"), Column("after"), Column("rows"), Column("requests")]
    shown = rows[:SHOWN_DIFFERENCES]
    caption = f"Slices that got worse first: {len(shown)} of {len(rows):,}"
    return Table(caption, columns, [_worse_row(row) for row in shown])


def _worse_row(row: SliceDifference) -> list[Cell]:
    tone = _TONES[row.verdict]
    return [
        Cell(row.value, f"{row.slice}: {row.stage}, {row.head}"),
        text_cell(BY_KEY[row.metric].label, f"against {row.against}"),
        number_cell(row.worsening, percent=True, digits=3, tone=tone),
        number_cell(row.difference, (row.low, row.high)),
        number_cell(row.before),
        number_cell(row.after),
        count_cell(row.rows),
        count_cell(row.requests),
    ]


def _tally(tiles: Sequence[Tile]) -> str:
    """How many figures changed, and the names of those that got worse."""
    bad = [tile.name for tile in tiles if tile.tone == "bad"]
    good = sum(tile.tone == "good" for tile in tiles)
    worse = f" Worse: {'; '.join(bad)}." if bad else ""
    kinds = "recall and losses, KL of whole stages, AUC and calibration to labels"
    return f"Of {len(tiles)} headline figures ({kinds}) {good} are significantly better, {len(bad)} worse.{worse}"


def _first_of(tones: Sequence[Tone], tiles: Sequence[Tile]) -> Tone:
    """The first of the tones that any tile has; none where none has one."""
    found = {tile.tone for tile in tiles}
    return next((tone for tone in tones if tone in found), "")
