"""Ranking requests as callers would have sent them, rebuilt from a log: a bundle keeps some for warm-up and replay."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from contracts.encoding import Encoder
from contracts.records import open_dataset
from contracts.schema import FeatureSchema
from modeling.examples import Examples

REQUESTS_FILE = "requests.jsonl"


def write_saved_requests(schema: FeatureSchema, examples: Examples, directory: Path, *, count: int = 32) -> None:
    """Write ``requests.jsonl`` into ``directory``, one body of ``POST /rank`` a line."""
    lines = [msgspec.json.encode(body) for body in saved_requests(schema, examples, count=count)]
    (directory / REQUESTS_FILE).write_bytes(b"".join(line + b"\n" for line in lines))


def saved_requests(schema: FeatureSchema, examples: Examples, *, count: int) -> list[dict[str, Any]]:
    """Bodies of ``POST /rank`` for requests spread evenly over the examples.

    The query holds raw values of the schema's features; the candidates are the request's pairs among the examples, with
    bids, objectives where all are known, and pair features. ``event_time`` keeps ages true in a replay.

    Args:
        schema: That the examples were encoded with.
        examples: Read from a log that still exists.
        count: Requests wanted; fewer where there are fewer.
    """
    used = np.unique(examples.request_row)
    chosen = used[np.unique(np.linspace(0, len(used) - 1, count).astype(np.int64))]
    columns = Encoder(schema, "query").columns
    names = list(dict.fromkeys(["scenario", "event_time", *columns]))  # the scenario may be a feature too
    rows = _take(examples, "requests", chosen, names).to_pylist()
    order = np.argsort(examples.request_row, kind="stable")
    first, last = (np.searchsorted(examples.request_row[order], chosen, side) for side in ("left", "right"))
    return [
        {
            "request_id": examples.request_ids[int(request)].as_py(),
            "scenario": row["scenario"],
            "event_time": row["event_time"],
            "query": _nested({name: row[name] for name in columns}),
            "candidates": _candidates(schema, examples, order[first[at] : last[at]]),
        }
        for at, (request, row) in enumerate(zip(chosen, rows, strict=True))
    ]


def _candidates(schema: FeatureSchema, examples: Examples, pairs: np.ndarray) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "ids": examples.ad_ids.take(pa.array(examples.ad_row[pairs])).to_pylist(),
        "bids": [None if np.isnan(bid) else float(bid) for bid in examples.bid[pairs]],
    }
    objectives = examples.objective[pairs]
    if (objectives >= 0).all():
        columns["objectives"] = [examples.summary.objective_names[code] for code in objectives]
    if examples.pair is not None:
        columns |= _take(examples, "candidates", pairs, Encoder(schema, "pair").columns).to_pydict()
    return columns


def _take(examples: Examples, dataset: str, rows: np.ndarray, names: "list[str] | tuple[str, ...]") -> pa.Table:
    """Raw columns of some rows, without reading the others' values into memory at once."""
    positions = pa.array(np.asarray(examples.positions[dataset])[rows])
    return open_dataset(getattr(examples.log, dataset)).take(positions, columns=list(names))


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """``{"watch.tag": [...]}`` becomes ``{"watch": {"tag": [...]}}``; missing values are left out."""
    query: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        group, _, field = name.partition(".")
        if field:
            query.setdefault(group, {})[field] = value
        else:
            query[name] = value
    return query
