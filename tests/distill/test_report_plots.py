"""Plots are laid out as their scales say, and nothing leaves the drawing."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, Series, line_plot, log_ticks


def test_points_and_bands_lie_where_the_scales_say() -> None:
    x, y = Scale([10, 1000], log=True), Scale([0.0, 1.0])
    series = Series("a", [10, 100, 1000], [0.0, 0.5, 1.0], [0.0, 0.25, 0.5], [0.5, 0.75, 1.0], color=2)
    line = line_plot("t", [series], x=x, y=y, x_label="x", y_label="y").lines[0]
    across = [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    up = [HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert [dot.x for dot in line.dots] == pytest.approx(across)
    assert [dot.y for dot in line.dots] == pytest.approx(up[::2])
    corners = [corner.split(",") for corner in line.band.split()]
    assert [float(corner[0]) for corner in corners] == pytest.approx(across + across[::-1])
    assert [float(corner[1]) for corner in corners] == pytest.approx(up[:3] + up[:1:-1], abs=0.06)
    assert line.color == 2
    assert line.dots[1].text == "a: 0.5 (0.25 to 0.75) at 100"


def test_what_is_undefined_is_left_out_and_what_is_beyond_lies_on_the_edge() -> None:
    x, y = Scale([1, 10]), Scale([1e-4, 1.0], log=True)
    series = Series("a", [1, 5, 10], [math.nan, 0.0, 2.0], [math.nan, 0.0, 1.0], [math.nan, 1e-5, 3.0])
    line = line_plot("t", [series], x=x, y=y, x_label="x", y_label="y").lines[0]
    assert [dot.y for dot in line.dots] == [HEIGHT - BOTTOM, TOP]
    assert len(line.band.split()) == 4


def test_labels_of_ticks_never_overlap() -> None:
    x = Scale([float(value) for value in range(40)])
    plot = line_plot("t", [], x=x, y=Scale([0, 1]), x_label="x", y_label="y")
    labelled = [tick.at for tick in plot.x_ticks if tick.label]
    assert len(plot.x_ticks) == 40
    assert min(b - a for a, b in pairwise(labelled)) >= 30


@given(st.floats(1e-9, 1e9), st.floats(1.0, 1e6))
def test_logarithmic_ticks_enclose_their_values(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert ticks[0] <= low
    assert ticks[-1] >= low * factor
    assert ticks == sorted(set(ticks))
    assert len(ticks) > 1
