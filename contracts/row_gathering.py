"""Texts of hashed tables and moments of events of one row, gathered over its features and encoded all at once."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from contracts.moments import MAX_EPOCH_MS, MIN_EPOCH_MS


class Gathering:
    """What the features of one row have brought so far.

    Args:
        kernels: Encode it.
        edges_us: Edges of the ages of all fields, one after another, int64.
    """

    __slots__ = ("_ages", "_edges_us", "_fields", "_kernels", "_millis", "_texts")

    def __init__(self, kernels: ModuleType, edges_us: np.ndarray) -> None:
        self._kernels, self._edges_us = kernels, edges_us
        self._texts: list[str] = []
        self._fields: list[int] = []  # count, place, buckets of each
        self._millis: list[Any] = []
        self._ages: list[int] = []  # count, place, first edge, end of the edges of each

    def add_text(self, text: str, place: int, buckets: int) -> None:
        """A text whose id, of a hashed table of so many rows, goes to a place of the row."""
        self._texts.append(text)
        self._fields += (1, place, buckets)

    def add_texts(self, texts: Sequence[str], place: int, buckets: int) -> None:
        """Texts whose ids go from a place on."""
        self._texts += texts
        self._fields += (len(texts), place, buckets)

    def add_millis(self, millis: Sequence[Any], place: int, first_edge: int, end_edge: int) -> None:
        """Moments of events, most recent first, whose ages' ids go from a place on."""
        self._millis += millis
        self._ages += (len(millis), place, first_edge, end_edge)

    def write(self, ids: np.ndarray, event_time_us: int) -> bool:
        """Write all ids into a row.

        Returns:
            False where something is no text, no whole number of milliseconds, out of order or of range: the row is of
            no use.
        """
        if self._fields:
            try:
                joined = "\0".join(self._texts).encode()
            except (TypeError, UnicodeEncodeError):
                return False
            data = np.frombuffer(joined + self._kernels.TAIL, np.uint8)
            if not self._kernels.hash_fields(data, np.array(self._fields, np.int64).reshape(-1, 3), ids):
                return False
        if not self._ages:
            return True
        if set(map(type, self._millis)) - {int}:
            return False
        try:
            millis = np.array(self._millis, np.int64)
        except OverflowError:
            return False
        ages = np.array(self._ages, np.int64).reshape(-1, 4)
        limits = MIN_EPOCH_MS, MAX_EPOCH_MS
        done: bool = self._kernels.age_fields(millis, ages, self._edges_us, event_time_us, *limits, ids)
        return done
