"""Finds behaviour sequences among the columns of requests, aligned lists named ``group.field``, and their tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.infer_kinds import FeatureGuess, category_table
from adlogs.infer_profile import is_list_type, list_lengths, profile_of
from adlogs.infer_sample import Sample
from contracts.columns import lists

LONGEST = 100
"""Events of a sequence that are proposed at most."""

SHARED = 0.5
"""Share of the events' values among an ad column's from which on they share its table."""

_ENOUGH = 20


@dataclass
class SequenceGuess:
    """A sequence feature with the tables of its own.

    Args:
        feature: What stands in the schema.
        tables: Tables of fields that share none, with the reason.
    """

    feature: FeatureGuess
    tables: dict[str, tuple[dict[str, int], str]] = field(default_factory=dict)


def sequence_groups(names: list[str]) -> dict[str, list[str]]:
    """Columns by group.

    Example:
        >>> sequence_groups(["watch.ad_id", "country", "watch.time"])
        {'watch': ['watch.ad_id', 'watch.time']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        group, dot, _ = name.partition(".")
        if dot:
            groups.setdefault(group, []).append(name)
    return groups


def guess_sequence(group: str, columns: list[str], sample: Sample, ad_values: Mapping[str, pa.Array]) -> SequenceGuess:
    """The sequence that some columns make.

    Args:
        group: Its name.
        columns: ``group.field`` each.
        sample: Of requests.
        ad_values: Distinct values of the categorical columns of ads, by name, to share tables with.
    """
    guess = SequenceGuess(FeatureGuess(group, "query", {"side": "query", "kind": "sequence"}, ""))
    arrays = {column.partition(".")[2]: sample.column(column) for column in columns}
    broken = [name for name, array in arrays.items() if not is_list_type(array.type)]
    if broken:
        guess.feature.spec |= {"max_length": 1, "fields": {}}
        guess.feature.leave_out(f"{group}.{broken[0]} holds no lists")
        return guess
    lengths = {name: list_lengths(array) for name, array in arrays.items()}
    first = next(iter(lengths.values()))
    usual = int(np.ceil(np.quantile(first, 0.95))) if len(first) else 1
    fields: dict[str, dict[str, Any]] = {}
    guess.feature.spec |= {"max_length": min(max(_rounded(usual), 1), LONGEST), "fields": fields}
    none = float((first == 0).mean()) if len(first) else 0.0
    notes = [f"up to {int(first.max(initial=0))} events, 95 % have at most {usual}, {none:.1%} have none"]
    for name, array in arrays.items():
        if not np.array_equal(lengths[name], first):
            notes.append(f"{name} has other lengths than {next(iter(arrays))}, so it is no field")
            guess.feature.check = True
            continue
        spec, note = _field(group, name, array, ad_values, guess)
        if spec is None:
            notes.append(note)
            continue
        fields[name] = spec
        guess.feature.notes[name] = note
    guess.feature.comment = "; ".join(notes)
    if not fields:
        guess.feature.leave_out("; ".join(notes))
    return guess


def _field(
    group: str, name: str, array: pa.Array, ad_values: Mapping[str, pa.Array], guess: SequenceGuess
) -> tuple[dict[str, Any] | None, str]:
    profile = profile_of(array)
    if pa.types.is_timestamp(profile.type):
        return {"kind": "age"}, "against the request's time"
    if not (profile.is_text or profile.is_integer or pa.types.is_boolean(profile.type)):
        return None, f"{name} holds {profile.type}, which no field reads"
    shared, share = _shared(name, array, ad_values)
    if shared is not None:
        return {"kind": "categorical", "table": shared}, f"{share:.0%} of {name} are values of the ads' {shared}"
    table = f"{group}_{name}"
    guess.tables[table] = category_table(profile)
    return {"kind": "categorical", "table": table}, f"{profile.distinct:,} values"


def _shared(name: str, array: pa.Array, ad_values: Mapping[str, pa.Array]) -> tuple[str | None, float]:
    """The ad column whose values the events have, that of the same name first."""
    found = pc.unique(lists(array, "values").present_values().drop_null())
    if not len(found):
        return None, 0.0
    texts = found.cast(pa.string())
    best: tuple[float, str] | None = None
    for column, values in ad_values.items():
        if len(values) < _ENOUGH and column != name:
            continue
        share = pc.mean(pc.is_in(texts, value_set=values).cast(pa.int8())).as_py()
        if share >= SHARED and (best is None or (column == name, share) > (best[1] == name, best[0])):
            best = share, column
    return (None, 0.0) if best is None else (best[1], best[0])


def _rounded(length: int) -> int:
    """Up to the next multiple of 5."""
    return -(-length // 5) * 5
