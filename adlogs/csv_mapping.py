"""The mapping file of `adsieve convert csv`: which CSV file is what, and what each of its columns becomes."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from adlogs.csv_files import CsvFormat
from adlogs.csv_values import FALSE_WORDS, TIME_KINDS, TRUE_WORDS, Kind, Reading
from contracts.config_errors import show
from contracts.errors import ConfigError

Side = Literal["query", "ad", "pair"]

LOG_DATASETS = ("requests", "candidates", "ads", "outcomes")
LABEL = "label_"
NEEDED = {
    "impressions": ("event_time", "ad_id"),
    "requests": ("request_id", "event_time"),
    "candidates": ("request_id", "ad_id"),
    "ads": ("ad_id",),
    "outcomes": ("request_id", "ad_id", "shown"),
}
"""Names that each table must give."""

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


class TableMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One table: a file, or several of the same columns.

    Args:
        files: Name of the file in the folder, or a glob.
        columns: By the name in the file. Columns that are not listed are left out.
        separator: Between fields, where it is not that of the other files.
    """

    files: str
    columns: dict[str, Column]
    separator: str | None = None


class Lookup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table with one row a key, such as users, whose columns join the requests; it is held in memory.

    Args:
        files: As of a table.
        key: Name in the log of the column that finds the row; the table and the requests both have it.
        columns: As of a table; one of them is the key.
        separator: As of a table.
    """

    files: str
    key: str
    columns: dict[str, Column]
    separator: str | None = None


class CsvMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a folder of CSV files becomes a log.

    Either ``impressions``, one row an ad that was shown, out of which requests and candidates are made; or ``requests``
    and ``candidates`` apart. ``ads`` may be absent beside ``impressions``: a row for each change of an ad's columns.

    Args:
        version: Of this file format.
        separator: Between the fields of a line.
        null_values: Texts that mean no value.
        time_zone: Of times that name none, such as ``Europe/Berlin``.
        scenario: Of every request and ad without a scenario of its own.
        eligible_per_request: Ads of the same day and scenario that join each request as eligible, drawn at random. A
            light ranker must also see what was not shown.
        impressions: The table of impressions, where requests and candidates are made of it.
        requests: The table of requests, where it is apart.
        candidates: The table of ads in requests, where it is apart.
        ads: The catalogue; without ``valid_from`` it holds from the first day of the log on.
        outcomes: What became of candidates, where that comes apart.
        lookups: Tables that join the requests, by a name of your choice.

    Raises:
        ConfigError: Rules across fields do not hold; one line a fault.
    """

    version: Literal[1] = 1
    separator: str = ","
    null_values: tuple[str, ...] = ("",)
    time_zone: str = "UTC"
    scenario: str = "standard"
    eligible_per_request: int = 0
    impressions: TableMapping | None = None
    requests: TableMapping | None = None
    candidates: TableMapping | None = None
    ads: TableMapping | None = None
    outcomes: TableMapping | None = None
    lookups: dict[str, Lookup] = {}

    def __post_init__(self) -> None:
        faults = list(_faults(self))
        if faults:
            raise ConfigError("\n".join(faults))

    def reading(self, column: Column) -> Reading:
        """How the text of a column is read."""
        return Reading(
            kind=column.kind,
            list_separator=column.list,
            newest_first=column.newest_first,
            time_format=column.format,
            decimal_comma=column.decimal_comma,
            time_zone=self.time_zone,
            true_values=TRUE_WORDS if column.true_values is None else column.true_values,
            false_values=FALSE_WORDS if column.false_values is None else column.false_values,
        )

    def csv_format(self, table: TableMapping | Lookup) -> CsvFormat:
        """How the files of a table are written."""
        return CsvFormat(separator=table.separator or self.separator, null_values=self.null_values)


def _faults(mapping: CsvMapping) -> Iterator[str]:
    if len(mapping.separator.encode()) != 1:
        yield f"separator: expected one character, got {mapping.separator!r}"
    try:
        ZoneInfo(mapping.time_zone)
    except (ValueError, OSError, LookupError):
        yield f"time_zone: expected a name such as UTC or Europe/Berlin, got {mapping.time_zone!r}"
    if not mapping.scenario.strip():
        yield f"scenario: expected a name, got {mapping.scenario!r}"
    if mapping.eligible_per_request < 0:
        yield f"eligible_per_request: expected at least 0, got {mapping.eligible_per_request}"
    yield from _layout_faults(mapping)
    for name in ("impressions", *LOG_DATASETS):
        table = getattr(mapping, name)
        if table is not None:
            yield from _table_faults(name, table, NEEDED[name], in_impressions=name == "impressions")
    for name, lookup in mapping.lookups.items():
        yield from _table_faults(f"lookups.{name}", lookup, (lookup.key,), in_impressions=False)
    yield from _lookup_faults(mapping)


def _layout_faults(mapping: CsvMapping) -> Iterator[str]:
    if mapping.impressions is not None:
        for name in ("requests", "candidates", "outcomes"):
            if getattr(mapping, name) is not None:
                yield f"{name}: is made of impressions, expected it to be absent beside them"
        if mapping.ads is not None:
            for source, column in mapping.impressions.columns.items():
                if column.belongs_to == "ad" and column.name != "ad_id":
                    path = f"impressions.columns.{source}.side"
                    yield f"{path}: the columns of ads come from `ads`, expected query or pair, got 'ad'"
        return
    for name in ("requests", "candidates", "ads"):
        if getattr(mapping, name) is None:
            yield f"{name}: required where there is no table of impressions, got null"


def _table_faults(
    path: str, table: TableMapping | Lookup, needed: tuple[str, ...], *, in_impressions: bool
) -> Iterator[str]:
    names = Counter(column.name for column in table.columns.values())
    for name, count in names.items():
        if count > 1:
            yield f"{path}.columns: {count} columns become {name!r}, expected one"
    for name in needed:
        if name not in names:
            yield f"{path}.columns: none becomes {name!r}, expected one; found {show(sorted(names))}"
    if table.separator is not None and len(table.separator.encode()) != 1:
        yield f"{path}.separator: expected one character, got {table.separator!r}"
    for source, column in table.columns.items():
        yield from _column_faults(f"{path}.columns.{source}", column, in_impressions=in_impressions)


def _column_faults(path: str, column: Column, *, in_impressions: bool) -> Iterator[str]:
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


def _lookup_faults(mapping: CsvMapping) -> Iterator[str]:
    source = mapping.impressions or mapping.requests
    if source is None:
        return
    known = {column.name: column for column in source.columns.values()}
    for name, lookup in mapping.lookups.items():
        if lookup.key not in known:
            path = f"lookups.{name}.key"
            yield f"{path}: no column of the requests becomes {lookup.key!r}, expected one of {sorted(known)}"
        for column in lookup.columns.values():
            path, other = f"lookups.{name}.columns", known.get(column.name)
            if other is not None and column.name != lookup.key:
                yield f"{path}: {column.name!r} comes from another table too, expected another name"
            elif other is not None and column.kind != other.kind:
                yield f"{path}: the key {lookup.key!r} is {column.kind} here and {other.kind} there, expected one type"
        known |= {column.name: column for column in lookup.columns.values()}
