"""What orders ads: bid times the per-impression probability of what the bid pays for.

Shapes: C candidates, H heads.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from contracts import compiled

DEFAULT_OBJECTIVE = "click"
MOST_BY_KERNEL = 256
"""Of more, NumPy's sort finds the best sooner."""


class ObjectiveColumns:
    """Objectives of one schema as codes, and which head each one pays for.

    The code is the position in the sorted names. An objective that maps to no task pays for the impression, which
    happens with probability 1. Where neither request nor index names an objective it is ``click``, or in a schema
    without one the first that pays for the first task of the chain.

    Args:
        objectives: Objective to task, or to None for the impression.
        tasks: Heads in order.

    Attributes:
        head_of: The head that each code pays for, int64 by code; H for the impression.

    Example:
        >>> columns = ObjectiveColumns({"click": "click", "impression": None}, ["click", "conversion"])
        >>> columns.probability(np.array([[0.2, 0.1], [0.2, 0.1]]), np.array([0, 1]))
        array([0.2, 1. ])
    """

    def __init__(self, objectives: Mapping[str, str | None], tasks: Sequence[str]) -> None:
        self.names = tuple(sorted(objectives))
        self.codes = {name: code for code, name in enumerate(self.names)}
        places = {task: place for place, task in enumerate(tasks)} | {None: len(tasks)}
        self.head_of = np.array([places[objectives[name]] for name in self.names], np.int64)
        self.default = self.codes.get(DEFAULT_OBJECTIVE, int(np.argmin(self.head_of)))

    def heads(self, codes: np.ndarray) -> np.ndarray:
        """The head that each code pays for [C]; H for the impression."""
        return self.head_of[codes]

    def from_other(self, names: Sequence[str]) -> np.ndarray:
        """Codes for another numbering, with one entry more at its end, the default, so that its code -1 means that."""
        return np.array([*(self.codes.get(name, self.default) for name in names), self.default], np.intp)

    def probability(self, probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Of [C, H] the column that each candidate's objective pays for, 1 for the impression. Returns [C]."""
        num_heads, heads = probabilities.shape[1], self.head_of.take(codes)
        paid = np.ones(len(codes))
        for head in range(num_heads):
            np.copyto(paid, probabilities[:, head], where=heads == head)
        return paid


def top_positions(utilities: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` largest, best first; equal ones in the order in which they stand.

    Example:
        >>> top_positions(np.array([1.0, 3.0, 3.0, 2.0]), 3)
        array([1, 2, 3])
    """
    if k <= 0:
        return np.zeros(0, np.intp)
    if k >= len(utilities):
        return np.argsort(-utilities, kind="stable")
    threshold = np.partition(utilities, len(utilities) - k)[len(utilities) - k]
    kept = np.flatnonzero(utilities >= threshold)  # at least k: all that tie with the last one
    return kept[np.argsort(-utilities[kept], kind="stable")[:k]]


def best(utilities: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """:func:`top_positions` of utilities, float64 [P], and the utilities there.

    Example:
        >>> best(np.array([1.0, 3.0, 3.0, 2.0]), 3)
        (array([1, 2, 3]), array([3., 3., 2.]))
    """
    count = min(k, len(utilities))
    if 0 < count <= MOST_BY_KERNEL and (kernels := compiled.kernels()) is not None:
        places, values = np.empty(count, np.int64), np.empty(count)
        if kernels.best_of(utilities, places, values):
            return places, values
    places = top_positions(utilities, k)
    return places, utilities[places]
