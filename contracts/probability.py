"""From logits to probabilities."""

import numpy as np


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Elementwise ``1 / (1 + exp(-x))`` in float64, exact to rounding also for tiny probabilities.

    Example:
        >>> sigmoid(np.array([0.0, -800.0])).tolist()
        [0.5, 0.0]
    """
    with np.errstate(over="ignore"):  # exp overflows to infinity, whose inverse is the right zero
        return 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
