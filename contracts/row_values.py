"""Values of a request as they were decoded, to ids: texts, whole numbers, booleans, instants; one list at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from contracts.hashing import TextIds
from contracts.moments import MAX_EPOCH_MS, MIN_EPOCH_MS
from contracts.rows import parse_time
from contracts.schema import MISSING, NUM_RESERVED

CACHED_TEXTS = 1 << 16
"""Values of one column whose ids are kept: most requests bring values that were seen before."""

CATEGORY, NUMBER = frozenset((str, int, bool)), frozenset((float, int, bool))


class IrregularError(Exception):
    """A value for the plain way."""


class _KnownIds(dict[Any, int]):
    """Ids of values of a type in ``CATEGORY``, those that were asked before by one look-up in a dictionary.

    A full dictionary begins anew: one that kept the order of use would touch more memory in every look-up than that
    saves. UnicodeEncodeError where a text is none.
    """

    def __init__(self, ids_of: TextIds) -> None:
        super().__init__()
        self._ids_of = ids_of

    def __missing__(self, value: str | int) -> int:
        text = value if isinstance(value, str) else str(int(value))
        text.encode()
        found = int(self._ids_of([text])[0])
        if len(self) >= CACHED_TEXTS:
            self.clear()
        self[value] = found
        return found


def id_function(ids_of: TextIds) -> Callable[[Any], int]:
    return _KnownIds(ids_of).__getitem__


def age_ids(values: Sequence[Any], edges_us: np.ndarray, event_time_us: int) -> np.ndarray:
    """Buckets of ages of instants, most recent first; the plain way says what is wrong with later or unsorted ones."""
    times, known = _instants(values)
    ages = event_time_us - times
    present = ages if known is None else ages[known]
    if len(present) and (present[0] < 0 or (present[1:] < present[:-1]).any()):
        raise IrregularError
    ids = edges_us.searchsorted(ages, side="right") + NUM_RESERVED
    if known is not None:
        ids[~known] = MISSING
    return ids


def _instants(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Microseconds since 1970, and which are not null; None where none is."""
    types = set(map(type, values))
    if types == {int}:
        millis = np.array(values, np.int64)
        if millis.min() < MIN_EPOCH_MS or millis.max() > MAX_EPOCH_MS:
            raise IrregularError
        return millis * 1000, None
    if not types <= {int, str, type(None)}:
        raise IrregularError
    micros = np.array([0 if value is None else parse_time(value, "") for value in values], np.int64)
    return micros, np.array([value is not None for value in values])


def ids_of_values(values: Sequence[Any], id_of: Callable[[Any], int]) -> list[int]:
    if are_texts(values):
        return list(map(id_of, values))
    types = set(map(type, values))
    if types <= CATEGORY:
        return list(map(id_of, values))
    if types - CATEGORY == {type(None)}:
        return [MISSING if value is None else id_of(value) for value in values]
    raise IrregularError


def are_texts(values: Sequence[Any]) -> bool:
    """Whether all are texts, which most are: told by the quickest thing that reads texts alone."""
    try:
        "".join(values)
    except TypeError:
        return False
    return True


def begins_with_text(value: Any) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is str


def listed(value: Any) -> Sequence[Any]:
    if type(value) is not list and not isinstance(value, list | tuple):
        raise IrregularError
    return value
