"""Finds behaviour sequences among the list columns of a CSV file: aligned lists, their order, and what they list."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_folder import SampledFile
from adlogs.csv_names import plain
from contracts.columns import instants

LONG_LIST = 8
"""Values from which on a list is taken for a history: tags of one thing are fewer."""

_MIN_OVERLAP = 0.5


@dataclass(frozen=True)
class SequenceName:
    """What one list column is named.

    Args:
        name: ``group.field``.
        newest_first: Whether its times fall.
        comment: Why.
        check: Whether a person should look.
    """

    name: str
    newest_first: bool
    comment: str
    check: bool


@dataclass
class SequenceNames:
    """By column."""

    by_column: dict[str, SequenceName] = field(default_factory=dict)


def sequence_names(file: SampledFile, ads: pa.Array, key: str) -> SequenceNames:
    """Name the histories of a file of requests or users; a file of ads has none.

    Args:
        file: With list columns.
        ads: Ids of ads, to tell lists of them.
        key: What the file's key is in the log.
    """
    found = SequenceNames()
    if key == "ad_id":
        return found
    known = pc.unique(ads.drop_null())
    for columns in _aligned(file):
        group, fields = _group_names(columns)
        order, sure = _order(file, columns)
        for column, field_name in zip(columns, fields, strict=True):
            is_ads = field_name == "value" and _share_known(file, column, known) >= _MIN_OVERLAP
            lengths = file.guesses[column].lengths or (0, 0, 0)
            what = f"up to {lengths[2]} events" + (", mostly ids of ads" if is_ads else "")
            what += f", as long as {' and '.join(c for c in columns if c != column)}" if len(columns) > 1 else ""
            asked = "" if sure else "; is the last event the newest? else add newest_first: true"
            name = f"{group}.{'ad_id' if is_ads else field_name}"
            found.by_column[column] = SequenceName(name, order, what + asked, not sure)
    return found


def _aligned(file: SampledFile) -> list[list[str]]:
    """Long list columns, those of equal lengths in every row together."""
    groups: dict[bytes, list[str]] = {}
    for name in file.columns:
        guess = file.guesses[name]
        if guess.reading.list_separator is None or guess.lengths is None or guess.lengths[2] < LONG_LIST:
            continue
        if guess.reading.kind == "number" and guess.lengths[0] == guess.lengths[2]:
            continue  # a vector
        values = file.values(name)
        if not pa.types.is_list(values.type):
            continue
        groups.setdefault(values.value_lengths().fill_null(0).to_numpy().tobytes(), []).append(name)
    return list(groups.values())


def _group_names(columns: list[str]) -> tuple[str, list[str]]:
    """A name for the sequence and one for each field.

    Example:
        >>> _group_names(["recent_item", "recent_time"]), _group_names(["watched"])
        (('recent', ['item', 'time']), ('watched', ['value']))
    """
    names = [plain(column) for column in columns]
    if len(names) == 1:
        return names[0], ["value"]
    words = [name.split("_") for name in names]
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*words, strict=False))
    common = "_".join(parts[0] for parts in same)
    return (common, [name.removeprefix(f"{common}_") for name in names]) if common else (names[0], names)


def _order(file: SampledFile, columns: list[str]) -> tuple[bool, bool]:
    """Whether the newest event comes first, and whether times tell it."""
    for column in columns:
        values = file.values(column)
        if not pa.types.is_timestamp(values.type.value_type):
            continue
        times, rows = instants(values.flatten()), np.repeat(np.arange(len(values)), _lengths(values))
        steps = np.diff(times)[np.diff(rows) == 0]
        if (steps >= 0).all() or (steps <= 0).all():
            return bool((steps < 0).any()), bool((steps != 0).any())
    return False, False


def _lengths(values: pa.Array) -> np.ndarray:
    return values.value_lengths().fill_null(0).to_numpy()


def _share_known(file: SampledFile, column: str, known: pa.Array) -> float:
    values = pc.unique(file.values(column).flatten().cast(pa.string()))
    return (pc.mean(pc.is_in(values, value_set=known).cast(pa.int8())).as_py() or 0.0) if len(values) else 0.0
