"""The rows of all slices as data inside the page, which its script filters, sorts and draws."""

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from distill.compare import Comparison, SliceDifference
from distill.evaluate import Evaluation
from distill.measures import SliceMetrics
from distill.report_metrics import METRICS, Metric, decimals
from distill.report_tables import interval_of, series_name, whole_stages, worse_than_whole

_DIGITS = 4
"""Significant digits of a number in the page; the files beside it have all of them."""

_UNDEFINED = (math.nan, math.nan, math.nan)
_PLACES = 15
_TEXTS = ("stage", "slice", "value", "head", "series")


def slice_data(sets: Sequence[tuple[str, Evaluation | Comparison]]) -> str:
    """JSON, compressed by deflate and written in base 64: a third of its size, and safe inside a script element.

    Every text is stored once, in ``strings``, and rows hold positions. A set is a table by columns: the values of each
    metric and the ends of their intervals, null where undefined, and in ``worse`` and ``improved`` a bit a metric. A
    reliability curve is ``predicted`` and ``observed``.

    Args:
        sets: What an evaluation or a comparison is called, and it.
    """
    strings: dict[str, int] = {}
    data = {
        "metrics": [{"key": metric.key, "label": metric.label, "better": metric.better} for metric in METRICS],
        "sets": [
            _levels(label, found, strings)
            if isinstance(found, Evaluation)
            else _differences(label, found.rows, strings)
            for label, found in sets
        ],
        "strings": list(strings),
    }
    return base64.b64encode(zlib.compress(msgspec.json.encode(data))).decode()


def _levels(label: str, evaluation: Evaluation, strings: dict[str, int]) -> dict[str, Any]:
    rows = evaluation.slices
    wholes = whole_stages(rows)
    table = _texts(rows, [series_name(row) for row in rows], strings)
    for metric in METRICS:
        table |= _columns(metric, [(getattr(row, metric.key), *interval_of(row, metric.key)) for row in rows])
    table["worse"] = [_worse_bits(row, wholes.get((row.stage, row.head, row.model, row.against))) for row in rows]
    curves = {(one.stage, one.slice, one.value, one.head, one.against): one for one in evaluation.reliability}
    own = [
        curves.get((row.stage, row.slice, row.value, row.head, row.against)) if row.model == "student" else None
        for row in rows
    ]
    for name in ("predicted", "observed"):
        table[name] = [[_significant(rate, 3) for rate in getattr(curve, name)] if curve else None for curve in own]
    return {"label": label, "difference": False, **table}


def _differences(label: str, rows: Sequence[SliceDifference], strings: dict[str, int]) -> dict[str, Any]:
    """One row for each slice, with the differences of all its metrics."""
    slices: dict[tuple[str, ...], dict[str, SliceDifference]] = {}
    for row in rows:
        slices.setdefault((row.stage, row.slice, row.value, row.head, row.against), {})[row.metric] = row
    firsts = [next(iter(found.values())) for found in slices.values()]
    table = _texts(firsts, [f"student against {row.against}" for row in firsts], strings)
    for metric in METRICS:
        own = [found.get(metric.key) for found in slices.values()]
        table |= _columns(metric, [(row.difference, row.low, row.high) if row else _UNDEFINED for row in own])
    for name, verdict in (("worse", "worse"), ("improved", "better")):
        table[name] = [_verdict_bits(found, verdict) for found in slices.values()]
    return {"label": label, "difference": True, **table}


def _texts(
    rows: Sequence[SliceMetrics] | Sequence[SliceDifference], series: Sequence[str], strings: dict[str, int]
) -> dict[str, Any]:
    columns = {name: [getattr(row, name) for row in rows] for name in _TEXTS[:-1]} | {"series": series}
    coded = {name: [strings.setdefault(text, len(strings)) for text in texts] for name, texts in columns.items()}
    return {**coded, "rows": [row.rows for row in rows], "requests": [row.requests for row in rows]}


def _columns(metric: Metric, values: Sequence[tuple[float, float, float]]) -> dict[str, list[float | None]]:
    """Values and interval ends of a metric, each as a column."""
    triples = [_rounded(*one) for one in values]
    names = (metric.key, f"{metric.key}_low", f"{metric.key}_high")
    return {name: [triple[place] for triple in triples] for place, name in enumerate(names)}


def _rounded(value: float, low: float, high: float) -> list[float | None]:
    """All three to two digits of the interval's width, or to four significant digits without an interval."""
    places = decimals(low, high, most=_PLACES)
    if places is not None:
        return [round(number, places) if math.isfinite(number) else None for number in (value, low, high)]
    return [_significant(number, _DIGITS) for number in (value, low, high)]


def _significant(number: float, digits: int) -> float | None:
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def _worse_bits(row: SliceMetrics, whole: SliceMetrics | None) -> int:
    return sum(1 << place for place, metric in enumerate(METRICS) if worse_than_whole(row, whole, metric))


def _verdict_bits(found: Mapping[str, SliceDifference], verdict: str) -> int:
    own = [found.get(metric.key) for metric in METRICS]
    return sum(1 << place for place, row in enumerate(own) if row is not None and row.verdict == verdict)
