"""What one column of a CSV file becomes, and the rules that hold of it alone."""

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from adlogs.csv_values import TIME_KINDS, Kind
from contracts.config_errors import show

Side = Literal["query", "ad", "pair"]

LABEL = "label_"
PAIR_NAMES = frozenset({"stage", "shown", "bid", "objective", "position", "sample_weight", "explore_propensity"})
"""Columns of one ad in one request, beside labels, whose meaning is fixed."""

QUERY_NAMES = frozenset({"request_id", "event_time", "scenario", "user_id"})
_TIMES = frozenset({"event_time", "valid_from", "labels_as_of", "ads_as_of"})
_FIXED: dict[str, Kind] = {
    **dict.fromkeys(("request_id", "ad_id", "scenario", "status", "objective", "stage", "release"), "text"),
    **dict.fromkeys(("bid", "sample_weight", "explore_propensity"), "number"),
    "position": "integer",
    "shown": "boolean",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)?")


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one CSV column becomes.

    Args:
        name: Its name in the log; ``label_TASK`` is an outcome, ``GROUP.FIELD`` a field of a behaviour sequence.
        type: What a value is; names with a fixed meaning need none, anything else is text unless said.
        side: Of impressions: whether it belongs to the request, the ad, or the pair of both.
        list: What separates values, where a field holds several.
        newest_first: Of a list: it begins with the latest event, and is turned around.
        format: Of type ``time``: as strptime has it; ISO 8601 unless given.
        decimal_comma: Of type ``number``: written as ``1.234,5``.
        true_values: Of outcomes, ``shown`` and type ``boolean``: words that mean 1, in any case, where they are not 1,
            true or yes; ``""`` is no value. Goes with ``false_values``, and a word that neither names is refused.
        false_values: Words that mean 0.
    """

    name: str
    type: Kind | None = None
    side: Side | None = None
    list: str | None = None
    newest_first: bool = False
    format: str | None = None
    decimal_comma: bool = False
    true_values: tuple[str, ...] | None = None
    false_values: tuple[str, ...] | None = None

    @property
    def kind(self) -> Kind:
        """The type, where it is not given the one that the name has."""
        if self.type is not None:
            return self.type
        if self.name in _TIMES:
            return "time"
        return "label" if self.name.startswith(LABEL) else _FIXED.get(self.name, "text")

    @property
    def belongs_to(self) -> Side:
        """The side of a column of impressions."""
        if self.side is not None:
            return self.side
        if self.name in PAIR_NAMES or self.name.startswith(LABEL):
            return "pair"
        return "ad" if self.name in ("ad_id", "status", "advertiser_id") else "query"


def column_faults(path: str, column: Column, *, in_impressions: bool) -> Iterator[str]:
    if not _NAME.fullmatch(column.name):
        rule = "expected a letter followed by letters, digits or underscores, or GROUP.FIELD"
        yield f"{path}.name: {column.name!r} is not a name, {rule}"
    fixed = {"time"} if column.name in _TIMES else {_FIXED[column.name]} if column.name in _FIXED else set()
    fixed = set(TIME_KINDS) if column.name in _TIMES else fixed
    fixed = {"label"} if column.name.startswith(LABEL) else fixed
    if fixed and column.kind not in fixed:
        yield f"{path}.type: {column.name} is {' or '.join(sorted(fixed))}, got {column.type!r}"
    if fixed and column.list is not None:
        yield f"{path}.list: {column.name} is a single value, expected no separator, got {column.list!r}"
    if column.list == "":
        yield f"{path}.list: expected what separates the values, got ''"
    if "." in column.name and column.list is None:
        yield f"{path}.list: {column.name!r} is a field of a sequence, expected what separates its values"
    if column.format is not None and column.kind != "time":
        yield f"{path}.format: only for type time, expected it to be absent, got {column.format!r}"
    if column.decimal_comma and column.kind != "number":
        yield f"{path}.decimal_comma: only for type number, expected it to be absent"
    if column.decimal_comma and column.list == ",":
        yield f"{path}.list: the comma is that of the numbers, expected another separator, got ','"
    if column.newest_first and column.list is None:
        yield f"{path}.newest_first: only for a list, expected it to be absent"
    yield from _word_faults(path, column)
    if column.side is not None and not in_impressions:
        yield f"{path}.side: only for impressions, expected it to be absent, got {column.side!r}"


def _word_faults(path: str, column: Column) -> Iterator[str]:
    """Words for 1 and 0: of the right types, both of them, and none twice."""
    given = {"true_values": column.true_values, "false_values": column.false_values}
    words = {name: [word.strip().lower() for word in words] for name, words in given.items() if words is not None}
    for name in words if column.kind not in ("label", "boolean") else ():
        yield f"{path}.{name}: only for outcomes, shown and type boolean, expected it to be absent"
    for name in given if words else ():
        if not words.get(name):
            yield f"{path}.{name}: expected the words that mean {int(name == 'true_values')}, got {show(given[name])}"
    both = set(words.get("true_values", ())) & set(words.get("false_values", ()))
    if both:
        yield f"{path}.true_values: {sorted(both)[0]!r} stands among false_values too, expected it in one of them"
