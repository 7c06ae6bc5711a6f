"""Line plots as plain numbers that the report's template draws as inline SVG."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 10, 42
"""Size of the drawing and its margins, in SVG units: about one pixel each on a phone, where text must stay legible."""

COLORS = 7
"""Colours and dash patterns that the style sheet defines."""

_LABEL_ROOM = 34
"""SVG units that the label of a tick on the x axis takes."""


@dataclass(frozen=True)
class Series:
    """One line: its name in the legend, its points, and the band of their intervals where there is one.

    ``color`` is the number of its colour and dash pattern.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    color: int = 0


@dataclass(frozen=True)
class Tick:
    """A position on an axis, in SVG units; without a label where there is no room for one."""

    at: float
    label: str


@dataclass(frozen=True)
class Dot:
    """A point in SVG units, and what it says when it is pointed at."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Line:
    """A line in SVG units: ``points`` and ``band`` are attributes of a polyline and a polygon, empty without one."""

    name: str
    color: int
    points: str
    band: str
    dots: list[Dot]


@dataclass(frozen=True)
class Plot:
    """What the template draws; ``guide`` is where a vertical line goes, None without one."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    diagonal: bool
    guide: float | None


@dataclass(frozen=True)
class Scale:
    """Labelled values of an axis, ascending, at least two distinct ones, that enclose all points.

    Args:
        ticks: The values; a point beyond the outermost is drawn on the edge.
        log: Whether the axis is logarithmic.
        text: A tick's label, and a value's in what a point says.
    """

    ticks: Sequence[float]
    log: bool = False
    text: Callable[[float], str] = "{:.4g}".format


@dataclass(frozen=True)
class Axis:
    """Maps the values of a scale onto SVG units from ``start`` to ``end``."""

    scale: Scale
    start: float
    end: float

    def at(self, value: float) -> float:
        """Position of a value, rounded to a tenth of a unit."""
        first, last = self.scale.ticks[0], self.scale.ticks[-1]
        inside = min(max(value, first), last)
        low, high, here = (math.log(v) if self.scale.log else v for v in (first, last, inside))
        return round(self.start + (here - low) / (high - low) * (self.end - self.start), 1)


def line_plot(
    title: str,
    series: Sequence[Series],
    *,
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
    diagonal: bool = False,
    guide: float | None = None,
) -> Plot:
    """Lay out lines and their bands between the outermost ticks.

    Args:
        series: Lines; points that are not finite are left out.
        x, y: Scales of the axes.
        diagonal: Draw the line on which x equals y, for axes of the same scale.
        guide: Value of x that a vertical line marks.

    Example:
        >>> unit = Scale([0, 1])
        >>> plot = line_plot("t", [Series("a", [0, 1], [0, 1])], x=unit, y=unit, x_label="x", y_label="y")
        >>> plot.lines[0].points
        '48.0,208.0 344.0,10.0'
    """
    across, up = Axis(x, LEFT, WIDTH - RIGHT), Axis(y, HEIGHT - BOTTOM, TOP)
    return Plot(
        title=title,
        x_label=x_label,
        y_label=y_label,
        lines=[_line(one, across, up) for one in series],
        x_ticks=_with_room([Tick(across.at(value), x.text(value)) for value in x.ticks]),
        y_ticks=[Tick(up.at(value), y.text(value)) for value in y.ticks],
        diagonal=diagonal,
        guide=None if guide is None else across.at(guide),
    )


def log_ticks(low: float, high: float, digits: Sequence[int] = (1, 2, 5)) -> list[float]:
    """Values of the form of a digit times a power of ten that enclose ``low`` to ``high``, both positive.

    Example:
        >>> log_ticks(0.03, 0.4)
        [0.02, 0.05, 0.1, 0.2, 0.5]
    """
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1  # one more: logarithms are rounded
    steps = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits]
    below, above = max(step for step in steps if step <= low), min(step for step in steps if step >= high)
    chosen = [step for step in steps if below <= step <= above]
    return chosen if len(chosen) > 1 else [chosen[0] / 2, chosen[0], chosen[0] * 2]


def _with_room(ticks: list[Tick]) -> list[Tick]:
    """Ticks whose label would run into the one before keep their line alone."""
    found: list[Tick] = []
    free = -math.inf
    for tick in ticks:
        found.append(tick if tick.at >= free else Tick(tick.at, ""))
        free = tick.at + _LABEL_ROOM if tick.at >= free else free
    return found


def _line(series: Series, across: Axis, up: Axis) -> Line:
    dots = [
        Dot(across.at(x), up.at(y), _says(series, place, across.scale, up.scale))
        for place, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        if math.isfinite(x) and math.isfinite(y)
    ]
    points = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    return Line(series.name, series.color % COLORS, points, _band(series, across, up), dots)


def _says(series: Series, place: int, x: Scale, y: Scale) -> str:
    bounds = [ends[place] for ends in (series.low, series.high) if len(ends) and math.isfinite(ends[place])]
    interval = f" ({y.text(bounds[0])} to {y.text(bounds[1])})" if len(bounds) == 2 else ""
    return f"{series.name}: {y.text(series.y[place])}{interval} at {x.text(series.x[place])}"


def _band(series: Series, across: Axis, up: Axis) -> str:
    """Outline of the intervals: the lower ends from left to right, then the upper ones back."""
    if not len(series.low):
        return ""
    ends = [
        (x, low, high)
        for x, low, high in zip(series.x, series.low, series.high, strict=True)
        if all(map(math.isfinite, (x, low, high)))
    ]
    outline = [(x, low) for x, low, _ in ends] + [(x, high) for x, _, high in reversed(ends)]
    return " ".join(f"{across.at(x)},{up.at(y)}" for x, y in outline)
