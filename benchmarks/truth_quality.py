"""How near predicted probabilities are to the true ones of a simulated log, as a whole and slice by slice.

Shape letters: N pairs, K tasks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from contracts.metrics import log_loss
from distill.slices import SliceColumn

LEAST_POSITIVES = 2_000
"""True positives to expect of a slice before its calibration says something."""

_LEAST_PROBABILITY = 1e-9


@dataclass(frozen=True)
class Calibration:
    """One slice of one task: the predictions' sum over the true probabilities' sum, which is ``positives``."""

    task: str
    column: str
    value: str
    positives: float
    ratio: float

    @property
    def error(self) -> float:
        """How far the ratio is from 1."""
        return abs(self.ratio - 1.0)


def expected_log_loss(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Mean over pairs of ``-(p log q + (1 - p) log(1 - q))``: the log loss of q over all labels of p.

    Args:
        truth: True probabilities p, [N].
        predicted: Probabilities q, [N].

    Example:
        >>> round(expected_log_loss(np.array([0.5]), np.array([0.5])), 4)
        0.6931
    """
    chance = np.clip(predicted.astype(np.float64), _LEAST_PROBABILITY, 1.0 - _LEAST_PROBABILITY)
    return float(-(truth * np.log(chance) + (1.0 - truth) * np.log1p(-chance)).mean())


def expected_excess(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Expected log loss of the predictions over that of the truth, less 1. It has no noise of labels, and is never
    negative."""
    return expected_log_loss(truth, predicted) / expected_log_loss(truth, truth) - 1.0


def realised_excess(labels: np.ndarray, truth: np.ndarray, predicted: np.ndarray) -> float:
    """The same by the labels that were drawn; those that are NaN are left out."""
    known = ~np.isnan(labels)
    return float(log_loss(labels[known], predicted[known]) / log_loss(labels[known], truth[known])) - 1.0


def calibrations(
    task: str,
    truth: np.ndarray,
    predicted: np.ndarray,
    columns: Mapping[str, SliceColumn],
    *,
    least_positives: float = LEAST_POSITIVES,
) -> Iterator[Calibration]:
    """All pairs together, then each slice of each column from which enough positives are to be expected.

    Args:
        task: Its name, for the result.
        truth: True probabilities, [N].
        predicted: [N].
        columns: By name, N pairs each.
        least_positives: Sum of the true probabilities that a slice needs.
    """
    everything = SliceColumn(np.zeros(len(truth), np.int64), ("all",))
    for name, column in {"all": everything, **columns}.items():
        size = len(column.values)
        expected = np.bincount(column.codes, weights=truth, minlength=size)
        given = np.bincount(column.codes, weights=predicted, minlength=size)
        for value, true_sum, sum_ in zip(column.values, expected, given, strict=True):
            if true_sum >= least_positives:
                yield Calibration(task, name, value, float(true_sum), float(sum_ / true_sum))


def worst(found: list[Calibration]) -> Calibration:
    """The slice that is farthest from its truth; there is at least one."""
    return max(found, key=lambda slice_: slice_.error)
