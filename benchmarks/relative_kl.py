"""How much lower one student's KL is than another's on the same pairs, and how sure that is.

Requests are resampled within each seed, and seeds among themselves: an interval holds the luck of the requests and of
the seed, in simulation, teacher and student alike. With few seeds it says little of the latter.

Shapes: N pairs, R requests, H heads, S seeds, D draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2_000


@dataclass(frozen=True)
class RequestSums:
    """KL summed over the pairs of each request, for one student on one slice.

    Args:
        kl: float64 [R, H].
        pairs: float64 [R].
    """

    kl: np.ndarray
    pairs: np.ndarray

    def mean(self) -> np.ndarray:
        """KL of each head, a pair [H]."""
        return self.kl.sum(0) / self.pairs.sum()


@dataclass(frozen=True)
class Reduction:
    """``1 - KL(ours) / KL(theirs)``, with the interval that holds 95 % of its resamples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.1%} ({self.low:+.1%} to {self.high:+.1%})"


def request_sums(kl: np.ndarray, request: np.ndarray) -> RequestSums:
    """Sum over requests.

    Args:
        kl: Of each pair and head [N, H].
        request: Request of each pair, any numbers [N].

    Example:
        >>> request_sums(np.array([[1.0], [3.0], [5.0]]), np.array([7, 7, 9])).kl.tolist()
        [[4.0], [5.0]]
    """
    _, rows = np.unique(request, return_inverse=True)
    sums = np.stack([np.bincount(rows, head) for head in kl.T.astype(np.float64)], axis=1)
    return RequestSums(sums, np.bincount(rows).astype(np.float64))


def relative_reduction(
    ours: Sequence[RequestSums], theirs: Sequence[RequestSums], *, draws: int = DRAWS, seed: int = 0
) -> Reduction:
    """How much lower our KL is, summed over heads: the mean over seeds on both sides, then the ratio.

    A draw takes S seeds with replacement, and of each seed's requests as many as it has; both students have the same
    ones. The interval is the percentile one.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13.

    Args:
        ours: For each seed; of the same requests as ``theirs``.
        theirs: For each seed.

    Raises:
        ValueError: Both are not of the same pairs.
    """
    for left, right in zip(ours, theirs, strict=True):
        if not np.array_equal(left.pairs, right.pairs):
            raise ValueError("both students must be judged on the same pairs of the same requests")
    values = 1 - _mean(ours) / _mean(theirs)
    generator = np.random.default_rng(seed)
    means = np.stack([_resampled(pair, draws, generator) for pair in zip(ours, theirs, strict=True)])  # [S, D, 2]
    chosen = generator.integers(len(means), size=(draws, len(means)))
    drawn = means[chosen, np.arange(draws)[:, None]].mean(1)  # [D, 2]
    low, high = np.quantile(1 - drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return Reduction(float(values), float(low), float(high))


def _mean(students: Sequence[RequestSums]) -> float:
    return float(np.mean([student.mean().sum() for student in students]))


def _resampled(pair: tuple[RequestSums, RequestSums], draws: int, generator: np.random.Generator) -> np.ndarray:
    """The KL of both students on the same resamples of one seed's requests, [D, 2]."""
    count = len(pair[0].pairs)
    columns = np.stack([pair[0].kl.sum(1), pair[1].kl.sum(1), pair[0].pairs], axis=1)  # [R, 3]
    sums = np.stack([_counts(count, generator) @ columns for _ in range(draws)])
    return sums[:, :2] / sums[:, 2:]


def _counts(count: int, generator: np.random.Generator) -> np.ndarray:
    """How often each of ``count`` requests is drawn, [R]."""
    return np.bincount(generator.integers(count, size=count), minlength=count)
