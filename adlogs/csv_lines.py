"""Lines of a proposed mapping: what a column of a CSV file becomes, by what it holds and how it is named."""

import re
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_column import LABEL, PAIR_NAMES, QUERY_NAMES, Column
from adlogs.csv_folder import SampledFile
from adlogs.csv_names import LABEL_WORDS, TELLS, plain
from adlogs.csv_proposal import Line
from adlogs.csv_roles import Roles
from adlogs.csv_values import FALSE_WORDS, TIME_KINDS, TRUE_WORDS, Reading

_RESERVED = QUERY_NAMES | PAIR_NAMES | {"valid_from", "status", "labels_as_of", "ads_as_of", "release"}
_RESERVED |= {"ad_id", "ids", "bids", "objectives"}
_PREFIXES = ("label_", "teacher_", "light_", "true_")
_CATEGORY = re.compile(r"(^|_)(id|code|type|kind|tag|zip|postcode|hash|key)s?(_|$)")
_OUTCOMES = {
    "clicked": "click",
    "conv": "conversion",
    "is_click": "click",
    "clicks": "click",
    "tapped": "click",
    "converted": "conversion",
}


def key_line(file: SampledFile, name: str, key: str, roles: Roles) -> Line:
    guess, comment = file.guesses[name], ""
    if key == "event_time":
        times = file.values(name).drop_null()
        comment = f"{pc.min(times).as_py():%Y-%m-%d %H:%M} to {pc.max(times).as_py():%Y-%m-%d %H:%M} UTC in the sample"
        column = Column(name=key, type=unless(guess.reading.kind, "time"), format=guess.reading.time_format)
        return Line(name, column, "; ".join(filter(None, (comment, guess.note))), bool(guess.note))
    distinct = len(pc.unique(file.texts(name).drop_null()))
    note = roles.notes.get({"ad_id": "ad", "user_id": "user"}.get(key, ""), "")
    return Line(name, Column(name=key), "; ".join(filter(None, (_values(distinct), note))), bool(note))


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count:,} values"


def label_line(file: SampledFile, name: str) -> Line:
    guess = file.guesses[name]
    rate = pc.mean(file.values(name).cast(pa.int8())).as_py() or 0.0
    task = label_task(file, name)
    column = Column(name=f"{LABEL}{task}", **_own_words(guess.reading))
    comment = "; ".join(filter(None, (f"an outcome: 1 in {rate:.1%} of rows", guess.note)))
    return Line(name, column, comment, bool(guess.note))


def label_task(file: SampledFile, name: str) -> str:
    """What an outcome is called: as its column, or as its word for 1 where the column's name says nothing.

    ``clicked`` and a ``result`` of ``click`` are both click.
    """
    words = [word for word in file.guesses[name].reading.true_values if TELLS.search(plain(word))]
    task = plain(name) if LABEL_WORDS.search(plain(name)) or not words else plain(words[0])
    return _OUTCOMES.get(task, task).removeprefix(LABEL)


def _own_words(reading: Reading) -> dict[str, Any]:
    """The words for 1 and 0, where they are not the usual ones."""
    if (reading.true_values, reading.false_values) == (TRUE_WORDS, FALSE_WORDS):
        return {}
    return {"true_values": reading.true_values, "false_values": reading.false_values}


def plain_line(file: SampledFile, name: str, taken: set[str]) -> Line:
    """A feature: its type, and what is worth a look."""
    guess = file.guesses[name]
    kind = guess.reading.kind
    texts = file.texts(name)
    distinct = len(pc.unique(texts.drop_null()))
    missing = texts.null_count / max(len(texts), 1)
    comment = _values(distinct) + (f", {missing:.1%} missing" if missing else "")
    notes = [guess.note] if guess.note else []
    if guess.note == "a date without a time of day":
        kind = "text"
    elif kind == "integer" and _CATEGORY.search(plain(name)):
        kind, comment = "text", f"{comment}; named like a category, so text"
    elif kind == "boolean" and guess.reading.list_separator is None:
        comment = f"{comment}: yes or no"
    column = Column(
        name=free_name(plain(name), taken),
        type=unless(kind, "text"),
        list=guess.reading.list_separator,
        format=guess.reading.time_format if kind == "time" else None,
        decimal_comma=guess.reading.decimal_comma and kind == "number",
        **(_own_words(guess.reading) if kind == "boolean" else {}),
    )
    line = Line(name, column, "; ".join([comment, *notes]), bool(notes))
    if kind in TIME_KINDS and guess.reading.list_separator is None:
        line.left_out, line.comment = True, "another moment; what a model can read is an age or an hour made of it"
    if distinct == 0:
        line.left_out = True
    return line


def fixed_line(file: SampledFile, name: str) -> Line | None:
    """A column whose name says that it has a meaning of its own."""
    kind, word = file.guesses[name].reading.kind, plain(name)
    if word in ("position", "rank", "slot", "place_in_list") and kind == "integer":
        return Line(name, Column(name="position"), "where the ad was shown: learned, and neutral when serving")
    if word in ("bid", "bid_price") and kind in ("number", "integer"):
        return Line(name, Column(name="bid", decimal_comma=file.guesses[name].reading.decimal_comma))
    if word in ("shown", "is_shown", "displayed", "impression", "is_impression") and file.guesses[name].is_flag:
        return Line(name, Column(name="shown"))
    if word in ("scenario", "objective", "stage"):
        return Line(name, Column(name=word))
    return None


def free_name(name: str, taken: set[str]) -> str:
    """A name that has no meaning of its own and is not given."""
    name = f"c_{name}" if name in _RESERVED or name.startswith(_PREFIXES) else name
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def changed(column: Column, **changes: Any) -> Column:
    return msgspec.structs.replace(column, **changes)


def unless(kind: Any, default: str) -> Any:
    return None if kind == default else kind
