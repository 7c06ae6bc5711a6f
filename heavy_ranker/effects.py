"""Do gains add up? Least squares over a grid of runs, with the interaction of every two factors and its interval.

Shapes: N runs, P coefficients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from contracts.errors import InputError


@dataclass(frozen=True)
class Effect:
    """One coefficient: of a factor, or of the product of two (``a x b``), with its interval.

    ``value`` is the change of the response for one step of the factor; ``low`` and ``high`` bound it, infinite where
    there are no more runs than coefficients.
    """

    name: str
    value: float
    low: float
    high: float

    @property
    def is_zero_plausible(self) -> bool:
        """Whether the interval holds zero; of an interaction: the two gains may add up."""
        return self.low <= 0.0 <= self.high


def factorial_effects(
    factors: Mapping[str, Sequence[float]], response: Sequence[float], *, confidence: float = 0.95
) -> list[Effect]:
    """Main effects and pairwise interactions of centred factors.

    Fits ``y = b_0 + sum_i b_i x_i + sum_(i<j) b_ij x_i x_j + noise`` with each ``x_i`` centred on its mean, so that a
    main effect is the average one over the grid. Intervals are Student's, ``b +- t * sqrt(s^2 (X'X)^-1)`` with the
    residuals' variance s^2 on N - P degrees of freedom; repeated seeds are what the residuals know of noise.

    Args:
        factors: By name, the value of each of the N runs, such as log2 of a width; constant ones are left out.
        response: Of each run, such as its log loss.
        confidence: Of the intervals.

    Raises:
        InputError: There are fewer runs than coefficients, or factors move together and cannot be told apart.

    Example:
        >>> grid = {"width": [0, 0, 1, 1, 0, 0, 1, 1], "days": [0, 1, 0, 1, 0, 1, 0, 1]}
        >>> effects = factorial_effects(grid, [4.0, 3.0, 2.0, 1.0, 4.0, 3.0, 2.0, 1.0])
        >>> [(effect.name, round(effect.value, 6) + 0.0) for effect in effects]
        [('width', -2.0), ('days', -1.0), ('width x days', 0.0)]
    """
    centred = {name: np.asarray(values, float) - np.mean(values) for name, values in factors.items()}
    moving = {name: values for name, values in centred.items() if np.ptp(values) > 0}
    columns = moving | {f"{a} x {b}": moving[a] * moving[b] for a, b in combinations(moving, 2)}
    target = np.asarray(response, float)
    design = np.column_stack([np.ones(len(target)), *columns.values()])
    runs, unknowns = design.shape
    if np.linalg.matrix_rank(design) < unknowns:
        raise InputError(
            f"scale: {runs} runs cannot tell {unknowns} coefficients apart ({', '.join(columns)}); "
            "expected a full grid of the factors"
        )
    fitted, *_ = np.linalg.lstsq(design, target, rcond=None)
    margins = _margins(design, target - design @ fitted, confidence)
    return [
        Effect(name, float(value), float(value - margin), float(value + margin))
        for name, value, margin in zip(columns, fitted[1:], margins[1:], strict=True)
    ]


def _margins(design: np.ndarray, residuals: np.ndarray, confidence: float) -> np.ndarray:
    """Half the width of each coefficient's interval, [P]."""
    freedom = design.shape[0] - design.shape[1]
    if freedom == 0:
        return np.full(design.shape[1], np.inf)
    variance = residuals @ residuals / freedom
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    return stats.t.ppf(0.5 + confidence / 2, freedom) * errors
