"""Turns a ranking request, plain JSON or MessagePack values, into the raw columns that the encoder reads.

The same types as in the logs, so that serving and training encode alike: texts, integers and booleans for categories,
numbers, lists, and instants as RFC 3339 text or epoch milliseconds. A field that is absent or null is missing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from contracts.config_errors import show
from contracts.encoding import Encoded, EncodedBatch, Encoder
from contracts.errors import RequestError
from contracts.moments import MAX_EPOCH_MS, MIN_EPOCH_MS, is_told
from contracts.schema import Feature, SequenceField

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_NUMBER, _NUMBERS = pa.float64(), pa.list_(pa.float64())
_INSTANTS = pa.list_(pa.timestamp("us", "UTC"))


def encode_request(
    encoder: Encoder, query: Mapping[str, Any], *, event_time_us: int, prefix: str = "query"
) -> tuple[Encoded, list[str]]:
    """Encode the features of one request.

    Args:
        encoder: Of the query side.
        query: Feature name to value; a sequence is a mapping of field name to list, oldest event first.
        event_time_us: When the request happens, microseconds since 1970 UTC.
        prefix: Where ``query`` stands in the request, for messages.

    Returns:
        One row, and the names in ``query`` that this encoder does not know.

    Raises:
        RequestError: A value of the wrong type, a sequence whose lists differ in length, an event later than the
            request.
    """
    batch, unknown = encode_row(encoder, query, event_time_us=event_time_us, prefix=prefix)
    return batch.encoded, unknown


def encode_row(
    encoder: Encoder, query: Mapping[str, Any], *, event_time_us: int, prefix: str = "query"
) -> tuple[EncodedBatch, list[str]]:
    """As :func:`encode_request`, with the coverage of the one row."""
    columns, unknown = request_columns(encoder, query, prefix=prefix)
    event_time = np.array([event_time_us], np.int64)
    batch = encoder.encode(columns, num_rows=1, event_time=event_time, absent="missing", invalid="mark")
    _raise_fault(batch, prefix)
    return batch, unknown


def encode_pairs(
    encoder: Encoder, columns: Mapping[str, Sequence[Any]], num_rows: int, *, prefix: str = "candidates"
) -> EncodedBatch:
    """Encode the pair features of ``num_rows`` candidates; raises RequestError as :func:`encode_request` does."""
    arrays = pair_columns(encoder, columns, num_rows, prefix=prefix)
    batch = encoder.encode(arrays, num_rows=num_rows, absent="missing", invalid="mark")
    _raise_fault(batch, prefix)
    return batch


def request_columns(
    encoder: Encoder, query: Mapping[str, Any], *, prefix: str = "query"
) -> tuple[dict[str, pa.Array], list[str]]:
    """The raw columns of one row, absent and null ones left out, and the names that the encoder does not know."""
    return feature_columns(encoder.features, query, prefix=prefix)


def feature_columns(
    features: Mapping[str, Feature], query: Mapping[str, Any], *, prefix: str = "query"
) -> tuple[dict[str, pa.Array], list[str]]:
    """As :func:`request_columns`, for features of any schema; the types are those of :func:`column_types`."""
    columns: dict[str, pa.Array] = {}
    unknown: list[str] = []
    for name, value in query.items():
        feature = features.get(name)
        if feature is None:
            unknown.append(name)
        elif value is not None:
            path = f"{prefix}.{name}"
            if feature.kind == "sequence":
                unknown += _sequence_columns(name, feature, value, path, columns)
            else:
                columns[name] = pa.array([_VALUES[feature.kind](value, feature, path)], _TYPES[feature.kind])
    return columns, unknown


def pair_columns(
    encoder: Encoder, columns: Mapping[str, Sequence[Any]], num_rows: int, *, prefix: str = "candidates"
) -> dict[str, pa.Array]:
    """The raw columns of the encoder's features that ``columns`` holds, ``num_rows`` values each."""
    arrays = {}
    for name, feature in encoder.features.items():
        values = columns.get(name)
        if values is None:
            continue
        path = f"{prefix}.{name}"
        if not isinstance(values, list | tuple) or len(values) != num_rows:
            raise RequestError(
                f"expected a list of one value for each candidate: {num_rows}, got {_shape(values)}", field=path
            )
        convert = _VALUES[feature.kind]
        converted = [
            None if value is None else convert(value, feature, f"{path}[{row}]") for row, value in enumerate(values)
        ]
        arrays[name] = pa.array(converted, _TYPES[feature.kind])
    return arrays


def column_types(features: Mapping[str, Feature]) -> dict[str, pa.DataType]:
    """The type of each raw column that requests fill.

    Example:
        >>> column_types({"price": Feature(side="query", kind="dense")})
        {'price': DataType(double)}
    """
    types = {name: _TYPES[feature.kind] for name, feature in features.items() if feature.kind != "sequence"}
    for name, feature in features.items():
        types |= {f"{name}.{field}": _event_type(part) for field, part in (feature.fields or {}).items()}
    return types


def parse_time(value: object, field: str) -> int:
    """Microseconds since 1970 UTC of RFC 3339 text or epoch milliseconds.

    Raises:
        RequestError: Neither of these, text without a zone, or beyond the years 1 to 9999 UTC.

    Example:
        >>> parse_time("2024-01-02T00:00:00Z", "event_time") == parse_time(1704153600000, "event_time")
        True
    """
    if isinstance(value, str):
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            instant = None
        if instant is not None and instant.tzinfo is not None:
            micros = (instant - _EPOCH) // _MICROSECOND  # a zone can lead out of the years that datetime has
            if is_told(micros):
                return micros
    elif type(value) is int and is_told(value * 1000):
        return value * 1000
    expected = "an RFC 3339 time with a zone, such as 2024-01-02T03:04:05Z, or epoch milliseconds"
    raise RequestError(f"expected {expected}, of the years 1 to 9999 UTC, got {show(value)}", field=field)


def _sequence_columns(name: str, feature: Feature, value: object, path: str, columns: dict[str, pa.Array]) -> list[str]:
    """Add the columns of one sequence to ``columns``; returns the fields that the schema does not know."""
    fields, length = feature.fields or {}, feature.max_length or 0
    if not isinstance(value, Mapping):
        raise RequestError(f"expected a mapping of {', '.join(sorted(fields))} to lists, got {show(value)}", field=path)
    expected: int | None = None
    for field_name, values in value.items():
        if values is None or field_name not in fields:
            continue
        field_path = f"{path}.{field_name}"
        _require_list(values, "one value an event", field_path)
        expected = len(values) if expected is None else expected
        if len(values) != expected:
            message = f"expected lists of equal length, got {len(values)} where the field before has {expected}"
            raise RequestError(message, field=field_path)
        columns[f"{name}.{field_name}"] = _event_column(fields[field_name], values, length, field_path)
    return [f"{name}.{field_name}" for field_name in value if field_name not in fields]


def _event_column(part: SequenceField, values: Sequence[Any], length: int, path: str) -> pa.Array:
    """The most recent ``length`` events; what is older is not even looked at."""
    first = max(0, len(values) - length)
    usual = _usual_events(part, values[first:])
    if usual is not None:
        return pa.array([usual], _event_type(part))
    convert: Callable[[Any, str], Any] = _text if part.kind == "categorical" else parse_time
    kept = [
        None if value is None else convert(value, f"{path}[{position}]")
        for position, value in enumerate(values[first:], first)
    ]
    return pa.array([kept], _event_type(part))


def _usual_events(part: SequenceField, values: Sequence[Any]) -> Sequence[Any] | None:
    """The events as Arrow reads them, where all are text or all epoch milliseconds; None leaves it to one by one."""
    types = set(map(type, values))
    if part.kind == "categorical":
        return values if types == {str} and _is_unicode(values) else None
    if types == {int} and min(values) >= MIN_EPOCH_MS and max(values) <= MAX_EPOCH_MS:
        return [value * 1000 for value in values]
    return None


def _is_unicode(texts: Sequence[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def _event_type(part: SequenceField) -> pa.DataType:
    return _TEXTS if part.kind == "categorical" else _INSTANTS


def _text(value: object, path: str) -> str:
    """The text that a category hashes as: integers in decimal, booleans as 1 and 0."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"expected valid Unicode text, got {show(value)}", field=path) from None
        return value
    if isinstance(value, int):
        return str(int(value))
    raise RequestError(f"expected text, an integer or a boolean, got {show(value)}", field=path)


def _number(value: object, path: str) -> float:
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise RequestError(f"expected a finite number, got {show(value)}", field=path)


def _texts(value: object, feature: Feature, path: str) -> list[str | None]:
    values = _require_list(value, "text, integers or booleans", path)
    return [None if one is None else _text(one, f"{path}[{at}]") for at, one in enumerate(values)]


def _numbers(value: object, feature: Feature, path: str) -> list[float]:
    values = _require_list(value, f"{feature.length} numbers", path)
    if len(values) != feature.length:
        raise RequestError(f"expected a list of {feature.length} numbers, got {len(values)}", field=path)
    return [_number(one, f"{path}[{at}]") for at, one in enumerate(values)]


_VALUES: dict[str, Callable[[Any, Feature, str], Any]] = {
    "categorical": lambda value, feature, path: _text(value, path),
    "dense": lambda value, feature, path: _number(value, path),
    "multi_categorical": _texts,
    "embedding": _numbers,
}
_TYPES = {"categorical": _TEXT, "dense": _NUMBER, "multi_categorical": _TEXTS, "embedding": _NUMBERS}


def _require_list(value: object, what: str, path: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise RequestError(f"expected a list of {what}, got {show(value)}", field=path)
    return value


def _shape(values: object) -> str:
    return f"a list of {len(values)}" if isinstance(values, list | tuple) else show(values)


def _raise_fault(batch: EncodedBatch, prefix: str) -> None:
    for fault in batch.faults:
        row = f"[{fault.row}]" if len(batch.invalid) > 1 else ""
        raise RequestError(fault.rule, field=f"{prefix}.{fault.column}{row}")
