"""Log datasets: their columns, and how they are opened, checked and read.

Logs are Parquet datasets: ``requests/``, ``candidates/``, ``ads/`` and, optional, ``outcomes/`` and ``truth/``.
Readers take string, large_string and dictionary columns, and timestamps of any unit that carry a zone.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from glob import glob
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pt

from contracts.errors import LogError
from contracts.parquet import readable

STAGES = ("eligible", "candidate", "winner")
"""The furthest stage that an ad reached; its code is the position. A winner was also a candidate and eligible."""

TEACHER_SEEN_UNTIL = b"adsieve.teacher_seen_until"
"""Key in the footer of scored candidates: microseconds UTC of the latest request that their teacher trained on."""

TEACHER_SAW_NONE = np.iinfo(np.int64).min
"""There, of a series: none of its members has trained on a row that it scored."""

STATUSES = ("active", "paused", "removed")
"""Status of an ad; its code is the position. Only an active ad is served; a missing status means active."""


class ColumnKind(StrEnum):
    """What a column must hold."""

    TEXT = "text"
    TIME = "timestamp with a time zone"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"


TEXT, TIME, NUMBER, INTEGER, BOOLEAN = ColumnKind

REQUIRED_COLUMNS: dict[str, dict[str, ColumnKind]] = {
    "requests": {"request_id": TEXT, "event_time": TIME, "scenario": TEXT},
    "candidates": {"request_id": TEXT, "ad_id": TEXT, "stage": TEXT},
    "ads": {"ad_id": TEXT, "valid_from": TIME, "scenario": TEXT},
    "outcomes": {"request_id": TEXT, "ad_id": TEXT, "shown": BOOLEAN},
    "truth": {"request_id": TEXT, "ad_id": TEXT},
}
OPTIONAL_COLUMNS: dict[str, dict[str, ColumnKind]] = {
    "requests": {"labels_as_of": TIME, "release": TEXT, "ads_as_of": TIME},
    "candidates": {
        "bid": NUMBER,
        "objective": TEXT,
        "position": INTEGER,
        "sample_weight": NUMBER,
        "explore_propensity": NUMBER,
        "teacher_version": TEXT,
    },
    "ads": {"status": TEXT, "bid": NUMBER, "objective": TEXT, "advertiser_id": TEXT},
    "outcomes": {"position": INTEGER, "labels_as_of": TIME},
    "truth": {},
}
"""Columns that have a meaning of their own where they are present. ``candidates`` and ``outcomes`` also hold
``label_TASK``, ``candidates`` ``teacher_TASK`` and ``light_TASK``, ``truth`` ``true_TASK``: numbers, or booleans for
labels.
"""


@dataclass(frozen=True, kw_only=True)
class LogPaths:
    """Where the datasets of one log are; each is a directory, a file or a glob."""

    requests: str
    candidates: str
    ads: str
    outcomes: str | None = None
    truth: str | None = None

    @classmethod
    def under(cls, directory: str | Path, candidates: str | Path | None = None) -> "LogPaths":
        """Return the datasets below ``directory``; ``candidates`` replaces its candidates, such as by a scored copy."""
        root = Path(directory)
        optional = {name: str(root / name) for name in ("outcomes", "truth") if (root / name).exists()}
        return cls(
            requests=str(root / "requests"),
            candidates=str(candidates or root / "candidates"),
            ads=str(root / "ads"),
            **optional,
        )


def dataset_files(path: str | Path) -> list[str]:
    """Return the sorted Parquet files of a dataset: a directory (hidden files ignored), a file or a glob.

    Raises:
        LogError: There are none.
    """
    text = str(path)
    if Path(text).is_dir():
        found = [str(file) for file in Path(text).rglob("*.parquet") if not _hidden(file.relative_to(text))]
    elif Path(text).is_file():
        found = [text]
    else:
        found = [file for file in glob(text, recursive=True) if Path(file).is_file()]
    if not found:
        raise LogError(
            f"{text}: no Parquet file here; expected a directory of *.parquet, a file or a glob",
            next_step="correct the path; `adsieve convert csv --help` and `adsieve simulate --help` make a log",
        )
    return sorted(found)


def open_dataset(*paths: str | Path) -> ds.Dataset:
    """Open a log dataset, of one place or several; its schema is the union of its files' schemas.

    Raises:
        LogError: Nothing is there, a file is not Parquet, comes twice or has two columns of one name, or two files
            disagree on the type of a column.
    """
    path = ", ".join(map(str, paths))
    files = [file for place in paths for file in dataset_files(place)]
    twice = sorted(file for file, count in Counter(os.path.realpath(file) for file in files).items() if count > 1)
    if twice:
        raise LogError(f"{twice[0]}: comes twice in {path}; {len(twice)} such files; give each once")
    merged: pa.Schema | None = None
    for file in files:
        try:
            schema = pq.read_schema(file).remove_metadata()
            _refuse_repeated(schema, file)
            merged = schema if merged is None else _merge(merged, schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeDecodeError, OSError) as error:
            raise LogError(f"{file}: not a Parquet file that fits the dataset {path}: {error}") from error
    return ds.dataset(files, format="parquet", schema=merged)


def check_columns(schema: pa.Schema, required: Mapping[str, ColumnKind], *, source: str | Path) -> None:
    """Check that the columns are there and of the right kind.

    Raises:
        LogError: Names the source, the column, what was found and what was expected.
    """
    for name, kind in required.items():
        index = schema.get_field_index(name)
        if index < 0:
            raise LogError(f"{source}: column {name} is missing; expected {kind}; found {schema.names}")
        if not _is_kind(schema.field(index).type, kind):
            raise LogError(f"{source}: column {name} has type {schema.field(index).type}, expected {kind}")


def read_table(
    path: str | Path, columns: Sequence[str] | None = None, *, required: Mapping[str, ColumnKind] | None = None
) -> pa.Table:
    """Read columns of a log dataset into memory; required text columns come as plain strings.

    Args:
        columns: Columns to read where they exist, beside the required ones; None reads all.
        required: Columns that must exist, with their kind.

    Raises:
        LogError: See ``open_dataset``, ``check_columns`` and ``contracts.parquet.readable``.
    """
    dataset = open_dataset(path)
    required = required or {}
    check_columns(dataset.schema, required, source=path)
    wanted = None if columns is None else set(columns) | set(required)
    names = [name for name in dataset.schema.names if wanted is None or name in wanted]
    with readable(path):
        table = dataset.to_table(columns=names)
        table.validate(full=True)
    for name, kind in required.items():
        if kind is TEXT:
            table = table.set_column(table.schema.get_field_index(name), name, plain_text(table[name]))
    return table


def plain_text(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a text column of any encoding as plain strings.

    Example:
        >>> plain_text(pa.array(["a", "b", "a"]).dictionary_encode()).to_pylist()
        ['a', 'b', 'a']
    """
    return array if array.type == pa.string() else array.cast(pa.string())


def utc_micros(array: pa.Array | pa.ChunkedArray, *, column: str, source: str | Path) -> np.ndarray:
    """Return timestamps as microseconds since 1970, UTC, int64 [B]. Finer units are rounded down.

    Raises:
        LogError: The type is no timestamp, carries no zone, or a value is missing.
    """
    if not _is_kind(array.type, TIME):
        raise LogError(f"{source}: column {column} has type {array.type}, expected {TIME}")
    if array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise LogError(f"{source}: column {column} is missing in row {row}, expected {TIME}")
    unit = array.type.unit
    if unit == "ns":
        return np.asarray(array.cast(pa.int64())) // 1000
    return np.asarray(array.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))


def _merge(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Return a schema that both can be read as; a column that is a dictionary in only one of them becomes plain."""
    if first.equals(second):
        return first
    differing = {
        field.name for field in first if field.name in second.names and field.type != second.field(field.name).type
    }
    plain = [pa.schema([_plain_field(field, differing) for field in schema]) for schema in (first, second)]
    return pa.unify_schemas(plain, promote_options="permissive")


def _refuse_repeated(schema: pa.Schema, file: str) -> None:
    repeated = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if repeated:
        raise LogError(f"{file}: has several columns of one name: {repeated}; expected one of each")


def _plain_field(field: pa.Field, differing: set[str]) -> pa.Field:
    if field.name in differing and pt.is_dictionary(field.type):
        return field.with_type(field.type.value_type)
    return field


def _hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)


def _is_kind(type_: pa.DataType, kind: ColumnKind) -> bool:
    plain = type_.value_type if pt.is_dictionary(type_) else type_
    if pt.is_null(type_):
        return kind is not TIME
    if kind is TEXT:
        return pt.is_string(plain) or pt.is_large_string(plain)
    if kind is TIME:
        return pt.is_timestamp(type_) and type_.tz is not None
    if kind is BOOLEAN:
        return pt.is_boolean(type_)
    if kind is INTEGER:
        return pt.is_integer(type_)
    return pt.is_integer(type_) or pt.is_floating(type_)
