"""What a scaling study found: effects with intervals, whether they add up, and quality against cost as a drawing."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.artifact import write_json
from heavy_ranker.effects import Effect, factorial_effects
from heavy_ranker.scale import CellResult, as_rows

REPORT_FILE, PLOT_FILE = "report.json", "report.svg"
_COSTS = (
    ("FLOPs an ad", lambda result: result.flops_per_ad),
    ("parameters", lambda result: sum(result.parameters.values())),
    ("impressions trained on", lambda result: result.rows),
)


def log_loss_effects(results: Sequence[CellResult], task: str) -> list[Effect]:
    """Effects on one task's test log loss, in percent of the study's mean log loss; a gain is negative."""
    losses = [result.metrics[task]["log_loss"] for result in results]
    mean = sum(losses) / len(losses)
    names = results[0].cell.factors
    factors = {name: [result.cell.factors[name] for result in results] for name in names}
    return factorial_effects(factors, [100 * loss / mean for loss in losses])


def write_report(results: Sequence[CellResult], out: Path) -> dict[str, Any]:
    """Write ``report.json`` and ``report.svg`` into the study's directory; returns what the former holds.

    Raises:
        InputError: The cells are too few to tell the effects apart.
    """
    tasks = list(results[0].metrics)
    effects = {task: log_loss_effects(results, task) for task in tasks}
    report = {
        "cells": as_rows(results),
        "effects": {task: [_as_row(effect) for effect in found] for task, found in effects.items()},
        "interactions": {task: _verdict(found) for task, found in effects.items()},
    }
    write_json(out / REPORT_FILE, report)
    draw(results, tasks, out / PLOT_FILE)
    return report


def _verdict(effects: Sequence[Effect]) -> str:
    """Whether gains add up, as far as the study can tell."""
    pairs = [effect for effect in effects if " x " in effect.name]
    if any(math.isinf(effect.high) for effect in pairs):
        return "cannot be told: as many coefficients as runs; more seeds or values are needed"
    apart = [effect.name for effect in pairs if not effect.is_zero_plausible]
    return f"gains do not add up: {', '.join(apart)}" if apart else "none was found: gains may add up"


def _as_row(effect: Effect) -> dict[str, Any]:
    return {"effect": effect.name, "percent": effect.value, "low": effect.low, "high": effect.high}


def draw(results: Sequence[CellResult], tasks: Sequence[str], path: Path) -> None:
    """Test log loss of every cell against each cost, one row of panels a task; colour is the days trained on."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(_COSTS), 3 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), len(_COSTS), squeeze=False)
    for row, task in zip(panels, tasks, strict=True):
        for panel, (label, cost) in zip(row, _COSTS, strict=True):
            for days in sorted({result.cell.days for result in results}):
                mine = [result for result in results if result.cell.days == days]
                losses = [result.metrics[task]["log_loss"] for result in mine]
                panel.plot([cost(result) for result in mine], losses, "o", alpha=0.7, label=f"{days:g} days")
            panel.set(xscale="log", xlabel=label, ylabel=f"{task} log loss")
        row[0].legend()
    FigureCanvasSVG(figure).print_svg(path)
