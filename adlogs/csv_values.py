"""Turns the text of CSV columns into what a log holds: numbers, times in UTC, labels and lists of these.

Letters: B rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.moments import is_told

Kind = Literal["text", "integer", "number", "boolean", "label", "time", "unix_s", "unix_ms", "unix_us"]

TIME_KINDS = ("time", "unix_s", "unix_ms", "unix_us")
MICROSECONDS = pa.timestamp("us", tz="UTC")

_EXPECTED = {
    "integer": "a whole number",
    "number": "a finite number",
    "boolean": "one of 1, 0, true, false, yes, no, or the words that true_values and false_values of the mapping name",
    "label": "1 or 0, true or false, yes or no, or the words that true_values and false_values of the mapping name; no "
    "value where the outcome is not known",
    "time": "an ISO 8601 time such as 2026-03-01T12:00:00Z",
    "unix_s": "seconds since 1970",
    "unix_ms": "milliseconds since 1970",
    "unix_us": "microseconds since 1970",
}
_UNITS = {"unix_s": 1_000_000, "unix_ms": 1_000, "unix_us": 1}
TRUE_WORDS, FALSE_WORDS = ("1", "true", "t", "yes", "y", "1.0"), ("0", "false", "f", "no", "n", "0.0")
"""What a label or boolean may read, in any case, where the mapping names no words."""

_DECIMAL_COMMA = r"^[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?$"
_ZONED = r"([zZ]|[+-]\d{2}:?\d{2})$"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the text of one column is read.

    Args:
        kind: What a value is.
        list_separator: What separates several values of a field; brackets and quotes around them are dropped.
        newest_first: Of a list: turned around, since histories are kept oldest first.
        time_format: Of kind ``time``, as strptime has it; None is ISO 8601.
        time_zone: Of times that name none.
        decimal_comma: Of kind ``number``: written as ``1.234,5``.
        true_values: Of kinds ``label`` and ``boolean``: the words that mean 1, in any case; an empty one stands for no
            value.
        false_values: The words that mean 0.
    """

    kind: Kind
    list_separator: str | None = None
    newest_first: bool = False
    time_format: str | None = None
    time_zone: str = "UTC"
    decimal_comma: bool = False
    true_values: tuple[str, ...] = TRUE_WORDS
    false_values: tuple[str, ...] = FALSE_WORDS


class BadValueError(Exception):
    """A text that does not read as what its column holds.

    Args:
        row: Its row, from 0.
        value: The text.
        expected: What it should have been.
    """

    def __init__(self, row: int, value: str, expected: str) -> None:
        super().__init__(f"{value!r}, expected {expected}")
        self.row, self.value, self.expected = row, value, expected


def read_values(texts: pa.Array, reading: Reading) -> pa.Array:
    """Convert a column; null stays null.

    Args:
        texts: string [B].
        reading: What they mean.

    Raises:
        BadValueError: The first value that cannot be read.

    Example:
        >>> read_values(pa.array(["7|9", None, ""]), Reading(kind="integer", list_separator="|")).to_pylist()
        [[7, 9], None, []]
    """
    if reading.list_separator is not None:
        return _lists(texts, reading)
    try:
        return _converted(texts, reading)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, _RefusedError):
        row = _first_refused(texts, lambda part: _converted(part, reading))
        raise BadValueError(row, texts[row].as_py(), _expected(reading)) from None


def reads_as(texts: pa.Array, reading: Reading) -> bool:
    """Whether every value can be read so."""
    try:
        read_values(texts, reading)
    except (BadValueError, ValueError):
        return False
    return True


def arrow_type(reading: Reading) -> pa.DataType:
    """The Arrow type that a column read so has."""
    return read_values(pa.array([], pa.string()), reading).type


class _RefusedError(Exception):
    """Some value is of the right form and not allowed."""


def _converted(texts: pa.Array, reading: Reading) -> pa.Array:
    if reading.kind == "text":
        return texts
    trimmed = pc.utf8_trim_whitespace(texts)
    match reading.kind:
        case "integer":
            return _without_fraction(trimmed).cast(pa.int64())
        case "number":
            plain = _with_decimal_point(trimmed) if reading.decimal_comma else trimmed
            return _finite(plain.cast(pa.float64()))
        case "boolean":
            return _booleans(trimmed, reading)
        case "label":
            return _booleans(trimmed, reading).cast(pa.int8())
        case "time":
            return _times(trimmed, reading)
    micros = pc.round(pc.multiply(_finite(trimmed.cast(pa.float64())), float(_UNITS[reading.kind])))
    if reading.kind != "unix_s":  # exact, where a double might not be
        micros = pc.multiply_checked(_without_fraction(trimmed).cast(pa.int64()), _UNITS[reading.kind])
    ends = pc.min_max(micros).as_py()  # what lies outside is milliseconds taken for seconds, or the like
    if any(end is not None and not is_told(int(end)) for end in ends.values()):
        raise _RefusedError
    return micros.cast(pa.int64()).cast(MICROSECONDS)


def _without_fraction(texts: pa.Array) -> pa.Array:
    """``12.0`` is how some programs write 12."""
    return pc.replace_substring_regex(texts, r"\.0*$", "")


def _with_decimal_point(texts: pa.Array) -> pa.Array:
    """``1.234,5`` as 1234.5."""
    if pc.all(pc.match_substring_regex(texts, _DECIMAL_COMMA)).as_py() is False:
        raise _RefusedError
    return pc.replace_substring(pc.replace_substring(texts, ".", ""), ",", ".")


def _finite(values: pa.Array) -> pa.Array:
    if pc.all(pc.is_finite(values)).as_py() is False:
        raise _RefusedError
    return values


def _booleans(texts: pa.Array, reading: Reading) -> pa.Array:
    true_words, false_words = (
        pa.array([word.strip().lower() for word in words], pa.string())
        for words in (reading.true_values, reading.false_values)
    )
    lower = pc.utf8_lower(texts)
    if "" in (*true_words.to_pylist(), *false_words.to_pylist()):
        lower = lower.fill_null("")
    true = pc.is_in(lower, value_set=true_words)
    known = pc.or_(pc.or_(true, pc.is_in(lower, value_set=false_words)), lower.is_null())
    if len(texts) and not pc.all(known).as_py():
        raise _RefusedError
    return pc.if_else(lower.is_valid(), true, pa.scalar(None, pa.bool_()))


def _times(texts: pa.Array, reading: Reading) -> pa.Array:
    if reading.time_format is not None:
        found = pc.strptime(texts, format=reading.time_format, unit="us", error_is_null=True)
        if found.null_count > texts.null_count:
            raise _RefusedError
        return _in_utc(found, reading.time_zone)
    zoned = pc.match_substring_regex(texts, _ZONED)
    if not pc.any(zoned).as_py():
        return _in_utc(texts.cast(pa.timestamp("us")), reading.time_zone)
    absent = pa.scalar(None, pa.string())
    named = pc.if_else(zoned, texts, absent).cast(MICROSECONDS)
    unnamed = pc.if_else(zoned, absent, texts).cast(pa.timestamp("us"))
    return pc.coalesce(named, _in_utc(unnamed, reading.time_zone))


def _in_utc(times: pa.Array, zone: str) -> pa.Array:
    """Of an hour that comes twice the first is meant; one that a clock leaps over becomes the first moment after it."""
    if times.type.tz is None:
        times = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="latest")
    return times.cast(MICROSECONDS)


def _lists(texts: pa.Array, reading: Reading) -> pa.Array:
    bare = pc.utf8_trim(texts, " \t[](){}")
    parts = pc.split_pattern(bare, reading.list_separator)
    parts = pa.ListArray.from_arrays(parts.offsets, _trimmed(parts.values), mask=parts.is_null())
    offsets, values = _without_empty(parts, bare)
    single = replace(reading, list_separator=None, newest_first=False)
    try:
        converted = read_values(values, single)
    except BadValueError as error:
        row = int(np.searchsorted(offsets, error.row, side="right")) - 1
        expected = f"{error.expected}, in a list separated by {reading.list_separator!r}"
        raise BadValueError(row, error.value, expected) from None
    if reading.newest_first:
        lengths = np.diff(offsets)
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        converted = converted.take(pa.array(np.repeat(offsets[1:], lengths) - 1 - place))
    mask = texts.is_null() if texts.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), converted, mask=mask)


def _trimmed(values: pa.Array) -> pa.Array:
    return pc.utf8_trim(values, " \t\"'")


def _without_empty(parts: pa.ListArray, bare: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Offsets and values of the lists; an empty field has none, where splitting it gives one empty text."""
    lengths = pc.list_value_length(parts).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    empty = np.asarray(pc.equal(bare, "").fill_null(True))
    kept = np.repeat(~empty, lengths)
    values = parts.flatten().filter(pa.array(kept))
    lengths = np.where(empty, 0, lengths)
    return np.concatenate([[0], np.cumsum(lengths)]), values


def _first_refused(texts: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> int:
    """Position of the first value that ``convert`` refuses, by halves."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(texts.slice(low, middle - low))
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, _RefusedError):
            high = middle
    return low


def _expected(reading: Reading) -> str:
    if reading.time_format is not None:
        return f"a time written as {reading.time_format}"
    if reading.decimal_comma:
        return "a number with a decimal comma, such as 1.234,5"
    if reading.kind in ("label", "boolean") and (reading.true_values, reading.false_values) != (
        TRUE_WORDS,
        FALSE_WORDS,
    ):
        true, false = (" or ".join(map(repr, words)) for words in (reading.true_values, reading.false_values))
        return f"{true} of true_values, or {false} of false_values"
    return _EXPECTED[reading.kind]
