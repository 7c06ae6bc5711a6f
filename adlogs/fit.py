"""Fits a feature schema to a log, and finds the schemas that come with the project.

Only the columns that have something to be fitted from are read, in slices, and only rows from before a moment: what a
schema knows must not come from the time that it is tested on.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.columns import instants, log_error
from contracts.config_errors import one_of, suggestion
from contracts.errors import ConfigError, InputError
from contracts.fitting import fit_schema
from contracts.parquet import sound_batches
from contracts.progress import progress
from contracts.records import REQUIRED_COLUMNS, TIME, LogPaths, check_columns, open_dataset, plain_text
from contracts.schema import SIDES, FeatureSchema, Side, load_schema

ROWS_AT_ONCE = 16_384

_MICROSECONDS = pa.timestamp("us", "UTC")
_DATASETS: dict[Side, str] = {"query": "requests", "ad": "ads", "pair": "candidates"}
_TIMES: dict[Side, str] = {"query": "event_time", "ad": "valid_from"}


def fit_log(schema: FeatureSchema, log: LogPaths, *, until: datetime | None, source: str = "") -> FeatureSchema:
    """Fit what the schema still lacks: means, quantile edges, vocabularies.

    Args:
        schema: Possibly unfitted; what it already holds stays.
        log: Its requests, ads and, for pair features, candidates.
        until: Only requests before this time, their candidates, and ads that began before it; None takes all.
        source: Name of the log in messages; the folder of its datasets unless given.

    Raises:
        LogError: A dataset or column is absent or of the wrong type, or a value is NaN or infinite.
        ConfigError: Something has no value to be fitted from.
        InputError: ``until`` has no time zone.
    """
    if until is not None and until.tzinfo is None:
        raise InputError(f"until: expected a time with a zone, got {until.isoformat()}")
    paths = {side: getattr(log, name) for side, name in _DATASETS.items()}
    columns = {side: _columns(schema, side) for side in SIDES}
    return fit_schema(
        schema,
        _batches(paths, columns, until),
        source=source or os.path.commonpath(map(os.path.abspath, paths.values())),
    )


def named_schema(name_or_path: str | Path) -> FeatureSchema:
    """Load a schema that comes with the project, by name, or a file, by path.

    Raises:
        ConfigError: Neither is there, or the file is not a schema.
    """
    bundled, text = bundled_schemas(), str(name_or_path)
    if text in bundled:
        with as_file(files("adlogs") / "schemas" / f"{text}.yaml") as path:
            return load_schema(path)
    if Path(text).is_file() or Path(text).suffix or os.sep in text:
        return load_schema(text)
    raise ConfigError(f"schema {text!r}: expected a file or {one_of(bundled)}{suggestion(text, bundled)}")


def bundled_schemas() -> tuple[str, ...]:
    """Names of the schemas that come with the project."""
    found = (Path(entry.name) for entry in (files("adlogs") / "schemas").iterdir())
    return tuple(sorted(path.stem for path in found if path.suffix == ".yaml"))


def _columns(schema: FeatureSchema, side: Side) -> tuple[str, ...]:
    """Columns of one side that something is fitted from."""
    open_tables = {name for name, table in schema.tables.items() if table.max_values is not None}
    columns = []
    for name, feature in schema.side_features(side).items():
        if feature.table in open_tables or not feature.is_fitted:
            columns.append(name)
        fields = (feature.fields or {}).items()
        columns += [f"{name}.{field_name}" for field_name, field in fields if field.table in open_tables]
    return tuple(columns)


def _batches(
    paths: Mapping[Side, str], columns: Mapping[Side, tuple[str, ...]], until: datetime | None
) -> Iterator[dict[Side, pa.Table]]:
    """Yield slices of one side each; requests first, for the candidates of those before ``until``."""
    before = None if until is None else pa.scalar(until, _MICROSECONDS).value
    requests: set[str] | None = None
    if columns["pair"] and before is not None:
        requests = set()
        for table in _rows(paths["query"], "query", ("request_id",), before, title="Reading requests"):
            requests.update(plain_text(table["request_id"]).to_pylist())
    for side in SIDES:
        if not columns[side]:
            continue
        for table in _rows(paths[side], side, columns[side], before, title=f"Reading {_DATASETS[side]}"):
            yield {side: table if side != "pair" or requests is None else _of_requests(table, requests)}


def _rows(path: str, side: Side, columns: tuple[str, ...], before: int | None, *, title: str) -> Iterator[pa.Table]:
    """Stream columns of a dataset; rows that do not come before a moment are left out where rows have a time."""
    dataset, time = open_dataset(path), _TIMES.get(side)
    key = {"request_id": REQUIRED_COLUMNS["candidates"]["request_id"]} if time is None else {time: TIME}
    required = key if before is not None else {}
    check_columns(dataset.schema, required, source=path)
    for column in columns:
        if column not in dataset.schema.names:
            raise log_error(
                path,
                column,
                f"is missing, expected for side {side!r} of the schema: write the log anew with it, or take it out of "
                "a copy of the schema",
            )
    wanted = list(dict.fromkeys([*columns, *required]))
    with progress(title, total=dataset.count_rows()) as advance:
        batches = dataset.to_batches(wanted, batch_size=ROWS_AT_ONCE, batch_readahead=4, fragment_readahead=1)
        for batch in sound_batches(batches, source=path):
            table = pa.Table.from_batches([batch])
            if time is not None and before is not None:
                table = table.filter(pa.array(_begins_before(batch[time], before)))
            yield table
            advance(batch.num_rows)


def _begins_before(times: pa.Array, before: int) -> np.ndarray:
    return (instants(times) < before) & np.asarray(times.is_valid())


def _of_requests(table: pa.Table, requests: set[str]) -> pa.Table:
    encoded = plain_text(table["request_id"]).combine_chunks().dictionary_encode()
    known = np.array([*(text in requests for text in encoded.dictionary.to_pylist()), False])
    indices = np.asarray(encoded.indices.fill_null(len(known) - 1))
    return table.filter(pa.array(known[indices]))
