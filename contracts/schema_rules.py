"""The rules across the fields of a feature schema; each fault is one line ``<path>: <what is wrong>``."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts.config_errors import one_of, show, suggestion

if TYPE_CHECKING:
    from contracts.schema import Feature, FeatureSchema, SequenceField, Table

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAME_RULE = "expected a letter followed by letters, digits or underscores"
MIN_AGE_BUCKETS = 6  # three reserved ids, and the three intervals that two edges make
MAX_DIM, MAX_ROWS, MAX_LENGTH = 4096, 2**31 - 1, 65_536

# What a kind of feature must and may set, beside side, kind and label.
_REQUIRED = {
    "categorical": {"table"},
    "dense": set(),
    "multi_categorical": {"table", "max_length"},
    "embedding": {"length"},
    "sequence": {"max_length", "fields"},
}
_OPTIONAL = {
    "categorical": set(),
    "dense": {"transform", "default", "buckets", "fitted"},
    "multi_categorical": {"pooling"},
    "embedding": set(),
    "sequence": set(),
}
_DEFAULTS = {"transform": "none", "pooling": "mean"}
_SETTABLE = ("table", "transform", "default", "max_length", "pooling", "length", "buckets", "fields", "fitted")

# Columns of candidates/ and outcomes/ that are no features: outcomes would leak, the rest has a meaning of its own.
_OUTCOME_PREFIXES = ("label_", "teacher_", "light_", "true_")
_RESERVED = {
    "query": {"request_id", "event_time", "labels_as_of", "ads_as_of", "release"},
    "ad": {"valid_from", "status"},
    "pair": {
        *("request_id", "ad_id", "stage", "bid", "objective", "position", "shown", "sample_weight"),
        *("explore_propensity", "labels_as_of", "ids", "bids", "objectives"),
    },
}  # fmt: skip


def schema_faults(schema: "FeatureSchema") -> list[str]:
    """Every rule across fields that ``schema`` breaks, in the order of the file."""
    return [
        *_task_faults(schema),
        *_objective_faults(schema),
        *(fault for name, table in schema.tables.items() for fault in _table_faults(f"tables.{name}", name, table)),
        *_feature_set_faults(schema),
        *(fault for name in schema.features for fault in _feature_faults(schema, name)),
    ]


def _task_faults(schema: "FeatureSchema") -> Iterator[str]:
    if not schema.tasks:
        yield "tasks: expected at least one task, got []"
    for position, task in enumerate(schema.tasks):
        yield from _name_faults(f"tasks[{position}]", task)
        if task in schema.tasks[:position]:
            yield f"tasks[{position}]: {task!r} is listed twice, expected each task once, in the order of the chain"


def _objective_faults(schema: "FeatureSchema") -> Iterator[str]:
    if not schema.objectives:
        yield "objectives: expected at least one, such as {click: click}, got {}"
    if len(schema.objectives) > 127:
        yield f"objectives: expected at most 127, got {len(schema.objectives)}"
    for name, task in schema.objectives.items():
        yield from _name_faults(f"objectives.{name}", name)
        if task is not None and task not in schema.tasks:
            known = one_of(schema.tasks) + suggestion(task, schema.tasks)
            yield f"objectives.{name}: unknown task {task!r}, expected null or {known}"


def _table_faults(path: str, name: str, table: "Table") -> Iterator[str]:
    yield from _name_faults(path, name)
    yield from _range_faults(f"{path}.dim", table.dim, 1, MAX_DIM)
    given = [field for field in ("buckets", "vocabulary", "max_values") if getattr(table, field) is not None]
    if len(given) != 1:
        yield f"{path}: expected exactly one of 'buckets', 'vocabulary', 'max_values', got {given or 'none'}"
    yield from _range_faults(f"{path}.buckets", table.buckets, 4, MAX_ROWS)
    yield from _range_faults(f"{path}.max_values", table.max_values, 1, MAX_ROWS)
    if table.vocabulary is not None:
        yield from _vocabulary_faults(f"{path}.vocabulary", table.vocabulary)


def _vocabulary_faults(path: str, vocabulary: tuple[str, ...]) -> Iterator[str]:
    if not vocabulary:
        yield f"{path}: expected at least one value, got []"
    seen: set[str] = set()
    for position, value in enumerate(vocabulary):
        if value in seen:
            yield f"{path}[{position}]: {value!r} is listed twice, expected each value once"
            return
        seen.add(value)


def _feature_set_faults(schema: "FeatureSchema") -> Iterator[str]:
    if not schema.features:
        yield "features: expected at least one, got {}"


def _feature_faults(schema: "FeatureSchema", name: str) -> Iterator[str]:
    path, feature = f"features.{name}", schema.features[name]
    yield from _name_faults(path, name)
    yield from _reserved_faults(path, name, feature.side)
    yield from _kind_faults(path, feature)
    yield from _reference_faults(f"{path}.table", feature.table, schema)
    yield from _range_faults(f"{path}.max_length", feature.max_length, 1, MAX_LENGTH)
    yield from _range_faults(f"{path}.length", feature.length, 1, MAX_LENGTH)
    if feature.kind == "dense":
        yield from _dense_faults(path, feature)
    if feature.kind == "sequence" and feature.side != "query":
        yield f"{path}.side: a sequence belongs to the request, expected 'query', got {feature.side!r}"
    if feature.fields is not None:
        yield from _sequence_faults(path, feature.fields, schema)


def _reserved_faults(path: str, name: str, side: str) -> Iterator[str]:
    if name.startswith(_OUTCOME_PREFIXES):
        prefixes = ", ".join(_OUTCOME_PREFIXES)
        yield f"{path}: {name!r} would leak an outcome, expected a name that starts with none of {prefixes}"
    if name in _RESERVED[side]:
        yield f"{path}: {name!r} has a meaning of its own in the logs, expected another name on side {side!r}"


def _kind_faults(path: str, feature: "Feature") -> Iterator[str]:
    required, allowed = _REQUIRED[feature.kind], _REQUIRED[feature.kind] | _OPTIONAL[feature.kind]
    for field in _SETTABLE:
        value = getattr(feature, field)
        is_set = value != _DEFAULTS.get(field)
        if field in required and not is_set:
            yield f"{path}.{field}: required for kind {feature.kind!r}, got null"
        if field not in allowed and is_set:
            yield from _absent_faults(f"{path}.{field}", feature.kind, value)


def _dense_faults(path: str, feature: "Feature") -> Iterator[str]:
    if feature.default is not None and not math.isfinite(feature.default):
        yield f"{path}.default: expected a finite number or null, got {feature.default}"
    if feature.buckets is not None and feature.transform != "quantile":
        yield f"{path}.buckets: only for transform 'quantile', expected it to be absent, got {feature.buckets}"
    yield from _range_faults(f"{path}.buckets", feature.buckets, 2, MAX_LENGTH)
    fitted = feature.fitted
    if fitted is None:
        return
    for field, value in (("mean", fitted.mean), ("std", fitted.std)):
        if value is not None and not math.isfinite(value):
            yield f"{path}.fitted.{field}: expected a finite number, got {value}"
    if fitted.std is not None and fitted.std <= 0:
        yield f"{path}.fitted.std: expected a number above 0, got {fitted.std}"
    edges = fitted.edges
    if edges is not None and not _strictly_increasing(edges):
        yield f"{path}.fitted.edges: expected at least one finite number, strictly increasing, got {show(list(edges))}"


def _sequence_faults(path: str, fields: "dict[str, SequenceField]", schema: "FeatureSchema") -> Iterator[str]:
    if not fields:
        yield f"{path}.fields: expected at least one, got {{}}"
    for name, field in fields.items():
        field_path = f"{path}.fields.{name}"
        yield from _name_faults(field_path, name)
        if field.kind == "categorical":
            if field.table is None:
                yield f"{field_path}.table: required for kind 'categorical', got null"
            yield from _absent_faults(f"{field_path}.buckets", field.kind, field.buckets)
            yield from _absent_faults(f"{field_path}.dim", field.kind, field.dim)
            yield from _reference_faults(f"{field_path}.table", field.table, schema)
        else:
            yield from _absent_faults(f"{field_path}.table", field.kind, field.table)
            yield from _range_faults(f"{field_path}.buckets", field.buckets, MIN_AGE_BUCKETS, MAX_LENGTH)
            yield from _range_faults(f"{field_path}.dim", field.dim, 1, MAX_DIM)


def _absent_faults(path: str, kind: str, value: object) -> Iterator[str]:
    if value is not None:
        yield f"{path}: not for kind {kind!r}, expected it to be absent, got {show(value)}"


def _reference_faults(path: str, table: str | None, schema: "FeatureSchema") -> Iterator[str]:
    if table is not None and table not in schema.tables:
        known = one_of(schema.tables) + suggestion(table, schema.tables) if schema.tables else "it under tables"
        yield f"{path}: unknown table {table!r}, expected {known}"


def _name_faults(path: str, name: str) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield f"{path}: {name!r} is not a name, {_NAME_RULE}"


def _range_faults(path: str, value: int | None, low: int, high: int) -> Iterator[str]:
    if value is not None and not low <= value <= high:
        yield f"{path}: expected {low}..{high}, got {value}"


def _strictly_increasing(edges: tuple[float, ...]) -> bool:
    return (
        len(edges) > 0
        and all(math.isfinite(edge) for edge in edges)
        and all(low < high for low, high in itertools.pairwise(edges))
    )
