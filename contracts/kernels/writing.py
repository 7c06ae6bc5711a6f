"""A row of a request written from the features that :func:`~contracts.kernels.queries.read_query` found in its body."""

import numpy as np
from numba import njit, types

from contracts.kernels.bodies import UNKNOWN
from contracts.kernels.build import U64, address, compiled, read, whole_of, write
from contracts.kernels.lookups import Lexicon, Query, found_id, id_of_name, number_of, of_item, of_value
from contracts.kernels.queries import (
    BOOLEAN,
    COUNT,
    FIRST,
    KIND,
    KINDS,
    LENGTH,
    LIST,
    NULL,
    OBJECT,
    PARENT,
    REAL,
    SCALAR,
    SHAPE,
    START,
    TEXT,
    WHOLE,
)
from contracts.kernels.texts import text_hash

CATEGORICAL, MULTI_CATEGORICAL, DENSE, EMBEDDING, HISTORY, HISTORY_IDS, HISTORY_AGES = range(7)
"""What a feature is, or a field of a history."""
ABSENT, GIVEN, OUTSIDE, NULLED = range(4)
"""What became of a feature; ``OUTSIDE`` is one that was given and holds a value outside its vocabulary."""
OF, PLACE, WIDTH, BUCKETS, GROUP, FIRST_PART, END_PART = range(7)
"""Columns of a plan."""

_CATEGORY, _NUMBER = BOOLEAN | TEXT | WHOLE, BOOLEAN | WHOLE | REAL
_MISSING, _OUT_OF_VOCABULARY = np.int32(1), np.int32(2)  # of contracts.schema


@njit
def _category(query, item, lexicon, buckets, group):  # type: ignore[no-untyped-def]
    """The id of a text, whole number or boolean in a table: a hashed one of so many rows, or a group of a lexicon."""
    data, start, length = query.data, of_item(query, item, START), of_item(query, item, LENGTH)
    if of_item(query, item, KIND) == BOOLEAN:
        data, start, length = lexicon.texts, np.int64(number_of(query, item)), np.int64(1)
    hashed = text_hash(data, start, length)
    if buckets:
        return np.int32(hashed % U64(buckets - 3)) + np.int32(3)
    found = found_id(lexicon, group, hashed, data, start, length)
    return _OUT_OF_VOCABULARY if found < 0 else np.int32(found)


@njit
def _write_ids(column, first, step, count, query, lexicon, ids):  # type: ignore[no-untyped-def]
    """Ids of ``count`` items from ``first`` on, whose kinds were looked at; what became of the feature."""
    state, place, buckets, group = GIVEN, column[PLACE], column[BUCKETS], column[GROUP]
    for at in range(count):
        item = first + step * at
        found = _MISSING
        if of_item(query, item, KIND) != NULL:
            found = _category(query, item, lexicon, buckets, group)
        ids[place + at] = found
        if found == _OUT_OF_VOCABULARY:
            state = OUTSIDE
    return state


@njit
def _write_ages(column, first, count, query, edges_us, now_us, earliest_ms, latest_ms, ids):  # type: ignore[no-untyped-def]
    """Buckets of the ages of ``count`` events, the last of which is ``first``; False as of ``age_fields``."""
    youngest, place = 0, column[PLACE]
    for at in range(count):
        item = first - at
        if of_item(query, item, KIND) == NULL:
            ids[place + at] = _MISSING
            continue
        milli = number_of(query, item)
        if milli < earliest_ms or milli > latest_ms:
            return False
        age = now_us - np.int64(milli) * 1000
        if age < youngest:
            return False
        youngest = age
        low, high = column[FIRST_PART], column[END_PART]
        while low < high:
            middle = (low + high) // 2
            if whole_of(edges_us, middle) <= age:
                low = middle + 1
            else:
                high = middle
        ids[place + at] = np.int32(low - column[FIRST_PART]) + np.int32(3)
    return True


@njit
def _write_feature(column, row, query, lexicon, ids, dense, floats):  # type: ignore[no-untyped-def]
    """What became of a feature that is no history, and not null; -1 where its value is not plain."""
    first, count = of_value(query, row, FIRST), of_value(query, row, COUNT)
    shape, kinds = of_value(query, row, SHAPE), of_value(query, row, KINDS)
    if column[OF] == CATEGORICAL or column[OF] == DENSE:
        is_category = column[OF] == CATEGORICAL
        if shape != SCALAR or kinds & ~(_CATEGORY if is_category else _NUMBER):
            return UNKNOWN
        if is_category:
            return _write_ids(column, first, 1, 1, query, lexicon, ids)
        dense[column[PLACE]] = number_of(query, first)
        return GIVEN
    if shape != LIST:
        return UNKNOWN
    if column[OF] == MULTI_CATEGORICAL:
        if kinds & ~(_CATEGORY | NULL):
            return UNKNOWN
        ids[column[PLACE]] = 0
        return _write_ids(column, first, 1, min(count, column[WIDTH]), query, lexicon, ids)
    if count != column[WIDTH] or kinds & ~_NUMBER:
        return UNKNOWN
    for at in range(count):
        number = np.float32(number_of(query, first + at))
        if not np.isfinite(number):
            return UNKNOWN
        floats[column[PLACE] + at] = number
    return GIVEN


@njit
def _name_fields(plan, row, query, lexicon, fields, states):  # type: ignore[no-untyped-def]
    """Find the fields of a history: the number of events, -1 where they disagree; and that of names that are unknown.

    ``fields`` gets the field of each value, -1 where it has none or is null.
    """
    feature, begin, count = fields[row], of_value(query, row, FIRST), of_value(query, row, COUNT)
    length, unknown = -1, 0
    for part in range(begin, begin + count):
        fields[part] = -1
        field = id_of_name(lexicon, plan[feature, GROUP], query, part)
        if field < 0:
            unknown += 1
            continue
        if states[field] != ABSENT:
            return -1, unknown
        states[field] = NULLED
        shape, kinds, events = (
            of_value(query, part, SHAPE),
            of_value(query, part, KINDS),
            of_value(query, part, COUNT),
        )
        if shape == SCALAR and kinds == NULL:
            continue
        if shape != LIST or (length >= 0 and events != length):
            return -1, unknown
        if kinds & ~((WHOLE if plan[field, OF] == HISTORY_AGES else _CATEGORY) | NULL):
            return -1, unknown
        fields[part], length = field, events
    return max(length, 0), unknown


@njit
def _write_history(plan, row, length, query, lexicon, fields, times, ids, states):  # type: ignore[no-untyped-def]
    """Write the most recent of ``length`` events; False where one is later than now, out of order or too far."""
    feature, begin, count = fields[row], of_value(query, row, FIRST), of_value(query, row, COUNT)
    kept = min(length, plan[feature, WIDTH])
    for part in range(begin, begin + count):
        field, last = fields[part], of_value(query, part, FIRST) + length - 1
        if field < 0:
            continue
        states[field] = GIVEN
        if plan[field, OF] == HISTORY_IDS:
            states[field] = _write_ids(plan[field], last, -1, kept, query, lexicon, ids)
        elif not _write_ages(plan[field], last, kept, query, times[0], times[1], times[2], times[3], ids):
            return False
    for field in range(plan[feature, FIRST_PART], plan[feature, END_PART]):
        if states[field] != GIVEN and states[field] != OUTSIDE:
            ids[plan[field, PLACE] : plan[field, PLACE] + kept] = _MISSING
    return True


_WRITTEN = (
    *(read(types.uint8), read(types.int64, 2), read(types.int64, 2), read(types.float64)),
    *(read(types.int64, 2), read(types.int64, 2), read(types.uint8), read(types.int64)),
    *(types.int64, types.int64, types.int64),
    *(write(types.int32), write(types.float64), write(types.float32), write(types.uint8)),
)


@compiled(types.int64, *_WRITTEN)
def write_row(
    data: np.ndarray,
    values: np.ndarray,
    items: np.ndarray,
    numbers: np.ndarray,
    plan: np.ndarray,
    slots: np.ndarray,
    texts: np.ndarray,
    edges_us: np.ndarray,
    now_us: int,
    earliest_ms: int,
    latest_ms: int,
    ids: np.ndarray,
    dense: np.ndarray,
    floats: np.ndarray,
    states: np.ndarray,
) -> int:
    """Write the features of a request into a row of missing ones.

    Args:
        data, values, items, numbers: As ``read_query`` filled them.
        plan: Of each feature and field of a history: what it is; where it begins in ``ids``, ``dense`` or ``floats``;
            how many there is room for; rows of a hashed table, else 0; group of the vocabulary, or of the names of a
            history's fields; where its edges, or its fields in ``plan``, begin and end [F, 7].
        slots, texts: A lexicon: group -1 where it is empty, where the text begins in ``texts``, its length, its id, its
            xxHash64 [a power of two, 5]. Group 0 are the names of features.
        edges_us: Edges of the ages of all fields.
        now_us: Against which ages are taken, microseconds.
        earliest_ms, latest_ms: No moment is before or behind these.
        ids, floats: The row; written to.
        dense: Dense features as given, NaN where missing; written to.
        states: Zeros [F]; gets what became of each. That of a history is of no use.

    Returns:
        How many names are in no plan; -1 where something is not plainly right, and the row of no use.
    """
    query = Query(address(data), address(values), address(items), address(numbers))
    lexicon = Lexicon(address(slots), address(texts), len(slots) - 1)
    times = address(edges_us), now_us, earliest_ms, latest_ms
    unknown, fields = 0, np.empty(len(values), np.int64)
    for row in range(len(values)):
        if values[row, PARENT] >= 0:
            continue
        feature = fields[row] = id_of_name(lexicon, 0, query, row)
        if feature < 0:
            unknown += 1
            continue
        if states[feature] != ABSENT:
            return UNKNOWN
        states[feature] = NULLED
        if values[row, SHAPE] == SCALAR and values[row, KINDS] == NULL:
            continue
        if plan[feature, OF] != HISTORY:
            state = _write_feature(plan[feature], row, query, lexicon, ids, dense, floats)
            if state == UNKNOWN:
                return UNKNOWN
            states[feature] = state
            continue
        if values[row, SHAPE] != OBJECT:
            return UNKNOWN
        length, more = _name_fields(plan, row, query, lexicon, fields, states)
        if length < 0 or not _write_history(plan, row, length, query, lexicon, fields, times, ids, states):
            return UNKNOWN
        unknown += more
    return unknown
