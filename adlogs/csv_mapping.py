"""The mapping file of `adsieve convert csv`: which CSV file is what, and what each of its columns becomes."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from adlogs.csv_column import Column, column_faults
from adlogs.csv_files import CsvFormat
from adlogs.csv_values import FALSE_WORDS, TRUE_WORDS, Reading
from contracts.config_errors import show
from contracts.errors import ConfigError, InputError
from contracts.names import check_scenario

LOG_DATASETS = ("requests", "candidates", "ads", "outcomes")
NEEDED = {
    "impressions": ("event_time", "ad_id"),
    "requests": ("request_id", "event_time"),
    "candidates": ("request_id", "ad_id"),
    "ads": ("ad_id",),
    "outcomes": ("request_id", "ad_id", "shown"),
}
"""Names that each table must give."""


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
        whole_pools: Requests of the latest fifth that get up to 1,000 ads of their day and scenario instead, so that
            recall can be measured: how many of the heavy ranker's best survive the light one.
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
    whole_pools: int = 0
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
    try:
        check_scenario(mapping.scenario)
    except InputError as error:
        yield str(error)
    for name in ("eligible_per_request", "whole_pools"):
        if getattr(mapping, name) < 0:
            yield f"{name}: expected at least 0, got {getattr(mapping, name)}"
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
        yield from column_faults(f"{path}.columns.{source}", column, in_impressions=in_impressions)


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
