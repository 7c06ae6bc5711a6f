"""``slices.parquet``: the metrics of every slice as one row each, an undefined one as NaN."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from distill.evaluate import Evaluation
from distill.measures import SliceMetrics


def write_slices(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Write the slices of evaluations: which bundle on which log, the fields of ``SliceMetrics``, and for each metric
    the bounds of its interval as ``METRIC_low`` and ``METRIC_high``.
    """
    rows = [
        {"bundle": one.bundle, "scenario": one.scenario, "log": one.log, **_row(metrics)}
        for one in evaluations
        for metrics in one.slices
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")


def _row(metrics: SliceMetrics) -> dict[str, Any]:
    row = msgspec.structs.asdict(metrics)
    bounds = row.pop("intervals")
    for metric, (low, high) in bounds.items():
        row |= {f"{metric}_low": low, f"{metric}_high": high}
    return row
