"""How the ads' graph meets the rows of several requests: as many places for each, and requests of one size together.

Shapes: R requests, B rows, C places of a request, F features.
"""

from collections.abc import Sequence

import numpy as np

from engines.buckets import bucket_for

MAX_WASTE = 0.25
"""Padding, over rows, that one call may have: below it, one larger product is faster than two smaller ones."""
SLACK_ROWS = 32
"""Padding that any call may have: computing so many rows costs less than another call."""


class GroupedRows:
    """Brings the rows of R requests to ``[R, C, ...]`` as the ads' graph takes them, and its result back to rows.

    A request with fewer than C rows is filled up with zeros. C is the most that one request has, or the smallest bucket
    that holds it.

    Args:
        request_index: int64 [B], each row's request.
        num_requests: R.
        widths: Buckets for C, ascending; none takes C as it is.

    Example:
        >>> layout = GroupedRows(np.array([1, 0, 1]), num_requests=2)
        >>> layout.group(np.array([[1.0], [2.0], [3.0]])).squeeze(-1).tolist()
        [[2.0, 0.0], [1.0, 3.0]]
        >>> layout.ungroup(layout.group(np.array([[1.0], [2.0], [3.0]]))).tolist()
        [[1.0], [2.0], [3.0]]
    """

    def __init__(self, request_index: np.ndarray, num_requests: int, *, widths: Sequence[int] = ()) -> None:
        counts = np.bincount(request_index, minlength=num_requests)
        self._shape = num_requests, bucket_for(int(counts.max(initial=0)), widths)
        self._is_full = num_requests == 1 and self._shape[1] == len(request_index)
        if not self._is_full:
            order = np.argsort(request_index, kind="stable")
            within = np.empty_like(order)
            within[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
            self._places = request_index * self._shape[1] + within

    def group(self, rows: np.ndarray) -> np.ndarray:
        """[B, F] to [R, C, F]; a view where one request fills all places."""
        if self._is_full:
            return rows[None]
        grouped = np.zeros((self._shape[0] * self._shape[1], rows.shape[1]), rows.dtype)
        grouped[self._places] = rows
        return grouped.reshape(*self._shape, rows.shape[1])

    def ungroup(self, grouped: np.ndarray) -> np.ndarray:
        """[R, C, K] to [B, K]."""
        flat = grouped.reshape(-1, grouped.shape[2])
        return flat if self._is_full else flat[self._places]


def similar_sizes(counts: np.ndarray) -> list[np.ndarray]:
    """Divide requests into sets whose numbers of rows are so alike that padding to the largest costs little.

    A set's padding is at most ``MAX_WASTE`` of its rows, or ``SLACK_ROWS`` rows. Requests without rows are in no set.

    Args:
        counts: Rows of each request, int [R].

    Returns:
        Positions of requests, ascending within a set.

    Example:
        >>> similar_sizes(np.array([100, 0, 500, 90]))
        [array([2]), array([0, 3])]
    """
    order = np.argsort(-counts, kind="stable")
    order = order[: np.count_nonzero(counts)]
    sets: list[np.ndarray] = []
    start = rows = 0
    for at, count in enumerate(counts[order].tolist()):
        padding = counts[order[start]] * (at + 1 - start) - (rows + count)
        if padding > max(MAX_WASTE * (rows + count), SLACK_ROWS):
            sets.append(np.sort(order[start:at]))
            start, rows = at, 0
        rows += count
    return [*sets, np.sort(order[start:])] if len(order) else []
