"""Rules of whole files: which columns must be there, of which type, and alike in all files of a dataset."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from adlogs.faults import FaultLog
from adlogs.log_slices import NOT_READABLE, READ_ERRORS, Finding, LogDataset, LogFile, LogSlice
from adlogs.rules_features import FeatureRules
from contracts.errors import LogError
from contracts.records import (
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    ColumnKind,
    check_columns,
    dataset_files,
)
from contracts.schema import FeatureSchema

MISSING_COLUMN = "is missing, expected {}"
WRONG_TYPE = "is of the wrong type, expected {}"
NAIVE_TIME = "is a timestamp without a time zone, expected one with a zone, such as UTC"
DIFFERING_TYPE = "is of another type than in {}, expected one type in all files"
REPEATED_COLUMN = "is there more than once, expected one column of a name"
NULL = "is null, expected {}"

Kinds: TypeAlias = dict[str, tuple[ColumnKind, ...]]

LABEL = (ColumnKind.NUMBER, ColumnKind.BOOLEAN)
LOGIT = (ColumnKind.NUMBER,)


@dataclass(frozen=True, kw_only=True)
class ExpectedColumns:
    """What the files of one dataset must, and may, hold beside the features.

    Args:
        required: Columns that must be there, with the kinds that each may have.
        optional: Columns that are checked where they are.
        features: The features that the dataset carries.
    """

    required: Kinds
    optional: Kinds
    features: FeatureRules | None

    @property
    def names(self) -> frozenset[str]:
        features = self.features.columns if self.features else ()
        return frozenset({*self.required, *self.optional, *features})


def expected_columns(
    dataset: str, schema: FeatureSchema, features: FeatureRules | None, *, elsewhere: Collection[str] = ()
) -> ExpectedColumns:
    """The columns of a dataset; ``candidates/`` must hold the labels that are not ``elsewhere``, in ``outcomes/``."""
    required: Kinds = {name: (kind,) for name, kind in REQUIRED_COLUMNS[dataset].items()}
    optional: Kinds = {name: (kind,) for name, kind in OPTIONAL_COLUMNS[dataset].items()}
    labels: Kinds = {f"label_{task}": LABEL for task in schema.tasks}
    match dataset:
        case "candidates":
            required |= {name: kinds for name, kinds in labels.items() if name not in elsewhere}
            optional |= labels | {f"{prefix}_{task}": LOGIT for prefix in ("teacher", "light") for task in schema.tasks}
        case "outcomes":
            optional |= labels
        case "truth":
            optional |= {f"true_{task}": LOGIT for task in schema.tasks}
    return ExpectedColumns(required=required, optional=optional, features=features)


def inspect_dataset(name: str, path: str, expected: ExpectedColumns, faults: FaultLog) -> LogDataset:
    """Check the columns of each file of a dataset, and find which of them can be read.

    Raises:
        LogError: The dataset has no file.
    """
    files: list[LogFile] = []
    first_types: dict[str, tuple[str, pa.DataType]] = {}
    dataset = LogDataset(name, files)
    for file in dataset_files(path):
        try:
            with pq.ParquetFile(file) as parquet:
                metadata, schema = parquet.metadata, parquet.schema_arrow
        except READ_ERRORS as error:
            faults.note_file(name, file, None, NOT_READABLE, str(error))
            dataset.is_whole = False
            continue
        unreadable = set()
        for column, rule, found in [*_column_faults(schema, expected), *_differing(file, schema, first_types)]:
            faults.note_file(name, file, column, rule, found)
            unreadable.add(column)
        readable = expected.names & set(schema.names) - unreadable
        files.append(LogFile(file, metadata.num_rows, metadata.num_row_groups, frozenset(readable)))
    return dataset


def null_findings(rows: LogSlice) -> Iterator[Finding]:
    """Rows whose required columns, other than labels, hold no value."""
    for column, kind in REQUIRED_COLUMNS[rows.place.dataset].items():
        array = rows.get(column)
        if array is not None and array.null_count:
            yield Finding(column, NULL.format(kind), np.asarray(array.is_null()))


def _column_faults(schema: pa.Schema, expected: ExpectedColumns) -> Iterator[tuple[str, str, str]]:
    """Column, rule and what was found."""
    for column, times in Counter(schema.names).items():
        if times > 1:
            yield column, REPEATED_COLUMN, f"{times} columns"
    known = {column: schema.field(column).type for column in schema.names if schema.names.count(column) == 1}
    for column, kinds in expected.required.items():
        if column not in schema.names:
            yield column, MISSING_COLUMN.format(_worded(kinds)), ", ".join(schema.names)
    for column, kinds in {**expected.optional, **expected.required}.items():
        if column in known and not _is_one_of(schema, column, kinds, or_null=column in expected.optional):
            yield column, _type_rule(known[column], _worded(kinds)), str(known[column])
    if expected.features:
        yield from _feature_faults(expected.features, known, schema)


def _feature_faults(
    features: FeatureRules, known: dict[str, pa.DataType], schema: pa.Schema
) -> Iterator[tuple[str, str, str]]:
    for column in features.columns:
        if column not in schema.names:
            feature = column.split(".")[0]
            yield column, MISSING_COLUMN.format(f"by feature {feature!r} of the schema"), ", ".join(schema.names)
        elif column in known and (wanted := features.refusal(column, known[column])) is not None:
            yield column, _type_rule(known[column], wanted), str(known[column])


def _differing(
    file: str, schema: pa.Schema, first_types: dict[str, tuple[str, pa.DataType]]
) -> Iterator[tuple[str, str, str]]:
    """Columns whose type cannot be read together with the one in an earlier file."""
    for field in schema:
        plain = field.type.value_type if pt.is_dictionary(field.type) else field.type
        first_file, first_type = first_types.setdefault(field.name, (file, plain))
        try:
            pa.unify_schemas(
                [pa.schema([(field.name, first_type)]), pa.schema([(field.name, plain)])], promote_options="permissive"
            )
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            yield field.name, DIFFERING_TYPE.format(first_file), f"{field.type}, there {first_type}"


def _is_one_of(schema: pa.Schema, column: str, kinds: Collection[ColumnKind], *, or_null: bool) -> bool:
    if or_null and pt.is_null(schema.field(column).type):
        return True
    return any(_is_kind(schema, column, kind) for kind in kinds)


def _is_kind(schema: pa.Schema, column: str, kind: ColumnKind) -> bool:
    try:
        check_columns(schema, {column: kind}, source="")
    except LogError:
        return False
    return True


def _worded(kinds: Collection[ColumnKind]) -> str:
    return " or ".join(kinds)


def _type_rule(type_: pa.DataType, expected: str) -> str:
    while hasattr(type_, "value_type"):
        type_ = type_.value_type
    is_naive = pt.is_timestamp(type_) and type_.tz is None
    return NAIVE_TIME if is_naive and "time zone" in expected else WRONG_TYPE.format(expected)
