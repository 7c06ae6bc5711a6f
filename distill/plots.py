"""Line plots as plain numbers that the report's template draws as inline SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 12, 44
"""Size of the drawing and its margins, in SVG units."""

COLORS = 3
"""Colours that the template defines."""


@dataclass(frozen=True)
class Series:
    """One line: its name in the legend and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis, in SVG units."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """A line in SVG units: its name, the number of its colour, and ``points`` as the attribute of a polyline."""

    name: str
    color: int
    points: str
    dots: list[tuple[float, float]]


@dataclass(frozen=True)
class Plot:
    """What the template draws."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    diagonal: bool


@dataclass(frozen=True)
class Axis:
    """Maps values from ``low`` to ``high`` onto SVG units from ``start`` to ``end``, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Position of a value, rounded to a tenth of a unit."""
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (here - low) / (high - low) * (self.end - self.start), 1)


def line_plot(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    log: bool = False,
    diagonal: bool = False,
) -> Plot:
    """Lay out lines between the outermost ticks.

    Args:
        series: Lines; points that are not finite are left out.
        x_ticks, y_ticks: Labelled values, ascending, at least two distinct ones, that enclose all points.
        log: Whether the axes are logarithmic; the x axis alone unless ``diagonal``.
        diagonal: Draw the line on which x equals y, for axes that share their ticks.

    Example:
        >>> line = Series("a", [0, 1], [0, 1])
        >>> plot = line_plot("t", [line], x_label="x", y_label="y", x_ticks=[0, 1], y_ticks=[0, 1])
        >>> plot.lines[0].points
        '52.0,256.0 460.0,12.0'
    """
    across = Axis(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT, log)
    up = Axis(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP, log and diagonal)
    return Plot(
        title=title,
        x_label=x_label,
        y_label=y_label,
        lines=[_line(one, number % COLORS, across, up) for number, one in enumerate(series)],
        x_ticks=[Tick(across.at(value), f"{value:g}") for value in x_ticks],
        y_ticks=[Tick(up.at(value), f"{value:g}") for value in y_ticks],
        diagonal=diagonal,
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Values of the form 1, 2 or 5 times a power of ten that enclose ``low`` to ``high``, both positive.

    Example:
        >>> log_ticks(0.03, 0.4)
        [0.02, 0.05, 0.1, 0.2, 0.5]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in (1, 2, 5)]
    below = [step for step in steps if step <= low] or steps[:1]
    above = [step for step in steps if step >= high] or steps[-1:]
    chosen = [step for step in steps if below[-1] <= step <= above[0]]
    return chosen if len(chosen) > 1 else [chosen[0] / 2, chosen[0], chosen[0] * 2]


def _line(series: Series, color: int, across: Axis, up: Axis) -> Line:
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    dots = [(across.at(x), up.at(y)) for x, y in points]
    return Line(series.name, color, " ".join(f"{x},{y}" for x, y in dots), dots)
