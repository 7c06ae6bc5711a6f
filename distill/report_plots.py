"""The report's plots: what survives over the number of survivors, and predicted beside observed rates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distill.evaluate import Evaluation
from distill.measures import Reliability
from distill.plots import Plot, Scale, Series, line_plot, log_ticks
from distill.recall import (
    BID_ONLY,
    HEADLINE_SURVIVORS,
    HISTORICAL,
    RANDOM,
    STUDENT,
    UTILITY,
    RecallCurve,
    RecallReport,
)
from distill.report_metrics import format_percent
from distill.slices import ALL

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LOSSES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ticks of the axis of losses; smaller ones are drawn on its lower edge."""

_STUDENT_COLORS = (0, 1, 6)
_LABEL_COLORS = (2, 3, 4)
_RANKING_COLORS = {HISTORICAL: 2, BID_ONLY: 3, RANDOM: 4}
_HEAVY_COLOR = 5


@dataclass(frozen=True)
class Named:
    """An evaluation and what its student is called beside others; empty where it is alone."""

    name: str
    evaluation: Evaluation


@dataclass(frozen=True)
class _Curve:
    """A curve and how it is drawn."""

    name: str
    color: int
    survivors: Sequence[int]
    curve: RecallCurve


@dataclass(frozen=True)
class FunnelPlots:
    """The plots that decide, and the same figures in the other orders."""

    main: list[Plot]
    others: list[Plot]


def funnel_plots(students: Sequence[Named]) -> FunnelPlots:
    """For each order the recall of the heavy top, then the utility lost, then, where the truth is known, the regret.

    Args:
        students: Evaluations of the same scenario on the same log; none of them needs to have recall. The rankings
            that need no student are the first one's.
    """
    reports = [(one.name, one.evaluation.recall) for one in students if one.evaluation.recall is not None]
    curves = list(_curves(reports))
    by_order: dict[str, list[_Curve]] = {}
    for curve in curves:
        by_order.setdefault(curve.curve.order, []).append(curve)
    plots = FunnelPlots([_recall_plot(order, own) for order, own in by_order.items()], [])
    decides = UTILITY if UTILITY in by_order else next(iter(by_order), "")
    for order, own in by_order.items():
        place = plots.main if order == decides else plots.others
        place.append(_loss_plot(f"Utility lost: {order}", own, "utility_lost"))
        known = [curve for curve in own if curve.curve.regret]
        if known:
            heavy = reports[0][1].heavy_regret.get(order)
            place.append(_loss_plot(f"Regret by the truth: {order}", known, "regret", heavy))
    return plots


def reliability_plots(students: Sequence[Named]) -> list[Plot]:
    """One plot for each whole stage and head, against whatever there is; none where no event was ever observed."""
    wholes = [curve for one in students for curve in one.evaluation.reliability if curve.slice == ALL]
    places = dict.fromkeys((curve.stage, curve.head) for curve in wholes)
    plots = []
    for stage, head in places:
        series = list(_reliability_series(students, stage, head))
        rates = [rate for one in series for rate in (*one.x, *one.y)]
        if rates:
            both = Scale(log_ticks(min(rates), max(rates), _digits(rates)), log=True, text="{:.3g}".format)
            plots.append(
                line_plot(
                    f"{head}, {stage}",
                    series,
                    x=both,
                    y=both,
                    x_label="predicted by the student",
                    y_label="observed",
                    diagonal=True,
                )
            )
    return plots


def _curves(reports: Sequence[tuple[str, RecallReport]]) -> Iterator[_Curve]:
    """The students' curves, then the first report's of the rankings without one."""
    for number, (name, report) in enumerate(reports):
        color = _STUDENT_COLORS[number % len(_STUDENT_COLORS)]
        for curve in report.curves:
            if curve.ranking == STUDENT:
                yield _Curve(name or STUDENT, color, report.survivors, curve)
    for _, report in reports[:1]:
        for curve in report.curves:
            if curve.ranking != STUDENT:
                yield _Curve(curve.ranking, _RANKING_COLORS.get(curve.ranking, 3), report.survivors, curve)


def _recall_plot(order: str, curves: Sequence[_Curve]) -> Plot:
    return line_plot(
        f"Heavy top that survives: {order}",
        [_series(one, one.curve.recall, one.curve.recall_low, one.curve.recall_high) for one in curves],
        x=_survivors_scale(curves),
        y=Scale(_SHARES),
        x_label="survivors",
        y_label="recall",
        guide=_guide(curves),
    )


def _loss_plot(
    title: str, curves: Sequence[_Curve], figure: str, level: tuple[float, float, float] | None = None
) -> Plot:
    """Losses on a logarithmic axis, where a good student and a random ranking both have room.

    Args:
        title: Of the plot.
        curves: Lines.
        figure: Field of the curves.
        level: Of the heavy ranker alone, whatever the number of survivors, with the ends of its interval.
    """
    values = [[getattr(one.curve, figure + end) for end in ("", "_low", "_high")] for one in curves]
    series = [_series(one, *own) for one, own in zip(curves, values, strict=True)]
    if level is not None:
        ends = [curves[0].survivors[0], curves[0].survivors[-1]]
        value, low, high = ([one] * 2 for one in level)
        series.append(Series("heavy ranker alone", ends, value, low, high, _HEAVY_COLOR))
    return line_plot(
        title,
        series,
        x=_survivors_scale(curves),
        y=Scale(_LOSSES, log=True, text=format_percent),
        x_label="survivors",
        y_label="share lost",
        guide=_guide(curves),
    )


def _series(one: _Curve, values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Series:
    return Series(one.name, one.survivors, values, low, high, one.color)


def _survivors_scale(curves: Sequence[_Curve]) -> Scale:
    survivors = curves[0].survivors
    return Scale(log_ticks(survivors[0], survivors[-1]), log=True)


def _guide(curves: Sequence[_Curve]) -> float | None:
    survivors = curves[0].survivors
    return HEADLINE_SURVIVORS if survivors[0] <= HEADLINE_SURVIVORS <= survivors[-1] else None


def _digits(rates: Sequence[float]) -> tuple[int, ...]:
    """Fewer ticks where the rates span several powers of ten."""
    return (1, 2, 5) if max(rates) < 100 * min(rates) else (1,)


def _reliability_series(students: Sequence[Named], stage: str, head: str) -> Iterator[Series]:
    """A bin without any observed event has no place on a logarithmic axis."""
    for number, student in enumerate(students):
        for curve in student.evaluation.reliability:
            if (curve.stage, curve.head, curve.slice) != (stage, head, ALL):
                continue
            points = [(p, o) for p, o in zip(curve.predicted, curve.observed, strict=True) if p > 0 and o > 0]
            if points:
                predicted, observed = ([point[at] for point in points] for at in (0, 1))
                color = (_STUDENT_COLORS if curve.against == "teacher" else _LABEL_COLORS)[number % 3]
                yield Series(_reliability_name(student, curve), predicted, observed, color=color)


def _reliability_name(student: Named, curve: Reliability) -> str:
    against = "teacher" if curve.against == "teacher" else "labels"
    return f"{student.name}, {against}" if student.name else against
