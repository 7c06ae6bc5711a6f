"""Guesses what the text of a CSV column holds: kind, separator of lists, format of times, words for no value."""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_values import Kind, Reading, read_values, reads_as
from adlogs.csv_words import words_of

NULL_WORDS = ("", "NULL", "null", "NaN", "nan", "NA", "N/A", "n/a", "None", "\\N")
"""Texts that mean no value wherever they stand."""

LIST_SEPARATORS = ("|", ";", ",", " ")
TIME_FORMATS = (
    "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%m/%d/%Y %I:%M:%S %p",
    "%m/%d/%Y %I:%M %p",
)
_INTEGER = r"^\s*-?(0|[1-9]\d*)(\.0+)?\s*$"
_DECIMAL_COMMA = r"^\s*-?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?\s*$"
_SURELY_DECIMAL = r"^\s*-?0,\d|,0\d|\.\d{3},"
"""What a list of whole numbers does not hold: 0,5 or 3,05 or 1.234,5."""
_TIME_WORDS = re.compile(r"time|stamp|date|epoch|when|_at(_|$)|_ts|^ts", re.IGNORECASE)
_UNIX = (("unix_s", 978_307_200, 4_102_444_800), ("unix_ms", 10**12, 4 * 10**12), ("unix_us", 10**15, 4 * 10**15))
_MIN_LIST_SHARE = 0.02
_SHORT = 3
_ELEMENTS = {",": r"^[\p{L}\p{N}_.+:/-]*$", " ": r"^[0-9.eE+-]*$"}
_ELEMENT = r"^[\p{L}\p{N}_.+:/& -]{0,64}$"  # between bars or semicolons also words


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What a column seems to hold.

    Args:
        reading: How to read it.
        note: What is not sure; empty where nothing is.
        is_flag: Whether its values are 0 and 1, or their words.
        lengths: Of a list: shortest, usual (90 %) and longest.
    """

    reading: Reading
    note: str = ""
    is_flag: bool = False
    lengths: tuple[int, int, int] | None = None

    @property
    def is_time(self) -> bool:
        return self.reading.kind in ("time", "unix_s", "unix_ms", "unix_us") and self.reading.list_separator is None


def guess_column(name: str, texts: pa.Array, *, is_outcome: bool = False) -> Guess:
    """Guess from a sample, null where a value is missing; a person may have said that it is an outcome.

    Example:
        >>> guess_column("seen_at", pa.array(["1650812741436"])).reading.kind
        'unix_ms'
        >>> guess_column("tags", pa.array(["20,43", "7,2", "20", "43,7", "7"])).reading.list_separator
        ','
    """
    present = texts.drop_null()
    if not len(present):
        return Guess(reading=Reading(kind="text"), note="no value in the sample")
    words = words_of(name, texts, is_outcome=is_outcome)
    if words is not None and (words.note or not reads_as(present, Reading(kind="boolean"))):
        reading = Reading(kind="boolean", true_values=words.true, false_values=words.false)
        return Guess(reading=reading, note=words.note, is_flag=True)
    single = _single(name, present)
    if single is not None:
        return single
    found = _list(name, present)
    return found if found is not None else Guess(reading=Reading(kind="text"))


def null_words(texts: pa.Array) -> set[str]:
    """Which words for no value stand in a column."""
    return set(pc.unique(texts.filter(pc.is_in(texts, value_set=pa.array(NULL_WORDS)))).to_pylist())


def _single(name: str, texts: pa.Array) -> Guess | None:
    """A single value that is not mere text."""
    if pc.all(pc.match_substring_regex(texts, _INTEGER)).as_py():
        return _integer(name, texts)
    if reads_as(texts, Reading(kind="boolean")):
        return Guess(reading=Reading(kind="boolean"), is_flag=True)
    if reads_as(texts, Reading(kind="number")) and not pc.any(pc.match_substring_regex(texts, r"^0\d")).as_py():
        return Guess(reading=Reading(kind="number"))
    if _has_decimal_commas(texts):
        return Guess(reading=Reading(kind="number", decimal_comma=True), note="decimal commas, or a list of numbers?")
    if reads_as(texts, Reading(kind="time")):
        note = "a date without a time of day" if pc.all(pc.match_substring_regex(texts, r"^.{8,10}$")).as_py() else ""
        return Guess(reading=Reading(kind="time"), note=note)
    for time_format in TIME_FORMATS:
        if reads_as(texts, Reading(kind="time", time_format=time_format)):
            other = time_format.replace("%d/%m", "%m/%d")
            is_open = other != time_format and reads_as(texts, Reading(kind="time", time_format=other))
            note = "day and month may be the other way round" if is_open else ""
            return Guess(reading=Reading(kind="time", time_format=time_format), note=note)
    return None


def _has_decimal_commas(texts: pa.Array) -> bool:
    all_fit = pc.all(pc.match_substring_regex(texts, _DECIMAL_COMMA)).as_py()
    return bool(all_fit and pc.any(pc.match_substring_regex(texts, _SURELY_DECIMAL)).as_py())


def _integer(name: str, texts: pa.Array) -> Guess:
    whole = Reading(kind="integer")
    if not reads_as(texts, whole):  # beyond 64 bits
        return Guess(reading=Reading(kind="text"))
    values = read_values(texts, whole).to_numpy(zero_copy_only=False)
    hinted = _TIME_WORDS.search(name) is not None
    for kind, low, high in _UNIX:
        if low <= values.min() and values.max() < high and hinted:
            return Guess(reading=Reading(kind=kind))  # type: ignore[arg-type]
    return Guess(reading=whole, is_flag=bool(np.isin(values, (0, 1)).all()))


def _list(name: str, texts: pa.Array) -> Guess | None:
    """Several values in a field: simple words or numbers with one separator between them."""
    bare = pc.utf8_trim(texts, " \t[](){}")
    for separator in LIST_SEPARATORS:
        has = pc.match_substring(bare, separator)
        if (pc.mean(has.cast(pa.int8())).as_py() or 0.0) < _MIN_LIST_SHARE:
            continue
        values = read_values(texts, Reading(kind="text", list_separator=separator))
        elements = values.flatten()
        if not pc.all(pc.match_substring_regex(elements, _ELEMENTS.get(separator, _ELEMENT))).as_py():
            continue
        kind, note = _element_kind(name, elements)
        lengths = values.value_lengths().to_numpy()
        shape = (int(lengths.min()), int(np.quantile(lengths, 0.9)), int(lengths.max()))
        if shape[2] <= _SHORT and len(pc.unique(bare)) <= len(pc.unique(elements)):
            continue  # such as [30,60): the parts come in no other combination
        return Guess(reading=Reading(kind=kind, list_separator=separator), note=note, lengths=shape)
    return None


def _element_kind(name: str, elements: pa.Array) -> tuple[Kind, str]:
    guess = _single(name.rpartition(".")[2], elements)
    if guess is None or guess.reading.time_format is not None or guess.is_flag or guess.reading.kind == "integer":
        return "text", ""
    return guess.reading.kind, guess.note
