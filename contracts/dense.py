"""Transforms of dense values, and the fitted state that each of them reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from contracts.schema import Feature, Fitted


@dataclass(frozen=True)
class DenseTransform:
    """One dense feature's way from raw values to model input.

    Args:
        apply: float64 [B] raw values to float64 [B].
        missing: Output for a missing value.
    """

    apply: Callable[[np.ndarray], np.ndarray]
    missing: float


def dense_transform(feature: Feature) -> DenseTransform:
    """The transform of a fitted dense feature.

    A missing value becomes the transformed ``default``; without a default it becomes the mean of what the transform
    gives: 0 after standardising, the middle rank 0 for ``quantile``, else the fitted mean.
    """
    apply = _function(feature)
    if feature.default is not None:
        return DenseTransform(apply, float(apply(np.array([feature.default]))[0]))
    centred = feature.transform in ("standardize", "log1p_standardize", "quantile")
    return DenseTransform(apply, 0.0 if centred else _number((feature.fitted or Fitted()).mean))


def _function(feature: Feature) -> Callable[[np.ndarray], np.ndarray]:
    fitted = feature.fitted or Fitted()
    match feature.transform:
        case "none":
            return lambda raw: raw
        case "log1p":
            return signed_log1p
        case "standardize":
            mean, std = _number(fitted.mean), _number(fitted.std)
            return lambda raw: (raw - mean) / std
        case "log1p_standardize":
            mean, std = _number(fitted.mean), _number(fitted.std)
            return lambda raw: (signed_log1p(raw) - mean) / std
        case "quantile":
            edges = np.asarray(fitted.edges, np.float64)
            ranks = even_ranks(len(edges))
            return lambda raw: np.interp(raw, edges, ranks)


class DenseRow:
    """The transforms of several fitted dense features for one row at once; the same bits as one after another.

    Args:
        features: F of them.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        kinds = np.array([feature.transform for feature in features])
        self._log = np.isin(kinds, ["log1p", "log1p_standardize"])
        scaled = np.isin(kinds, ["standardize", "log1p_standardize"])
        fitted = [feature.fitted or Fitted() for feature in features]
        self._mean = np.array([_number(one.mean) if own else 0.0 for one, own in zip(fitted, scaled, strict=True)])
        self._std = np.array([_number(one.std) if own else 1.0 for one, own in zip(fitted, scaled, strict=True)])
        self._quantiles = [
            (place, _function(features[place])) for place in np.flatnonzero(kinds == "quantile").tolist()
        ]

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        """float64 [F] raw values to float64 [F]; NaN stays NaN."""
        values = raw.copy()
        values[self._log] = signed_log1p(raw[self._log])
        values -= self._mean
        values /= self._std
        for place, transform in self._quantiles:
            values[place] = transform(raw[place])
        return values


def signed_log1p(raw: np.ndarray) -> np.ndarray:
    """``sign(x) log(1 + |x|)``: log1p for counts, and defined for what is negative.

    Example:
        >>> signed_log1p(np.array([-1.0, 0.0, np.e - 1])).round(3).tolist()
        [-0.693, 0.0, 1.0]
    """
    return np.copysign(np.log1p(np.abs(raw)), raw)


def even_ranks(num_edges: int) -> np.ndarray:
    """What ``quantile`` gives at each edge, linear between them: -1 at or below the first, 1 at or above the last.

    Example:
        >>> even_ranks(3).tolist(), even_ranks(1).tolist()
        ([-1.0, 0.0, 1.0], [0.0])
    """
    return np.linspace(-1.0, 1.0, num_edges) if num_edges > 1 else np.zeros(1)


def _number(value: float | None) -> float:
    """A fitted value; ``FeatureSchema.require_fitted`` has refused its absence before."""
    return float("nan") if value is None else value
