"""Numbers ids in the order in which they are met, and finds keys that come again.

Letters: B rows of a slice.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from contracts.records import plain_text


class IdCodes:
    """A code for each distinct id: 0, 1, 2, ... The ids are kept; nothing else of the rows is."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def text(self, code: int) -> str:
        """The id of one code."""
        return next(islice(self._codes, code, None))

    def texts(self) -> pa.Array:
        """The ids by their code, string."""
        return pa.array(list(self._codes), pa.string())

    def find(self, ids: pa.Array) -> np.ndarray:
        """int64 [B] codes; -1 where an id is null or not kept.

        Example:
            >>> codes = IdCodes()
            >>> codes.add(pa.array(["b", "a"])).tolist(), codes.find(pa.array(["a", "c", None])).tolist()
            ([0, 1], [1, -1, -1])
        """
        distinct, indices = _distinct(ids)
        return np.append([self._codes.get(text, -1) for text in distinct], -1).astype(np.int64)[indices]

    def add(self, ids: pa.Array) -> np.ndarray:
        """int64 [B] codes, new ones where an id is new; -1 where null.

        Example:
            >>> codes = IdCodes()
            >>> codes.add(pa.array(["b", None, "a", "b"])).tolist(), codes.add(pa.array(["a", "c"])).tolist()
            ([0, -1, 1, 0], [1, 2])
        """
        distinct, indices = _distinct(ids)
        known = self._codes
        return np.append([known.setdefault(text, len(known)) for text in distinct], -1).astype(np.int64)[indices]


def repeats(*keys: np.ndarray) -> np.ndarray:
    """bool [B]: rows whose keys, all of them together, stood in an earlier row.

    Example:
        >>> repeats(np.array([3, 1, 3, 3])).tolist()
        [False, False, True, True]
    """
    order = np.lexsort(keys[::-1])
    found = np.zeros(len(keys[0]), bool)
    if len(order):
        equal = [np.diff(key[order]) == 0 for key in keys]
        found[order[1:]] = np.logical_and.reduce(equal)
    return found


def _distinct(ids: pa.Array) -> tuple[Sequence[str], np.ndarray]:
    encoded = plain_text(ids).dictionary_encode()
    indices = encoded.indices.cast(pa.int64()).fill_null(len(encoded.dictionary))
    return encoded.dictionary.to_pylist(), indices.to_numpy()
