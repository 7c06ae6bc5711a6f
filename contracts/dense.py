"""Transforms of dense values, and the fitted state that each of them reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from contracts import compiled
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
        places: Where in a row of floats each one stands, [F].
    """

    def __init__(self, features: Sequence[Feature], places: np.ndarray) -> None:
        kinds = np.array([feature.transform for feature in features])
        self._places, self._is_log = places, np.isin(kinds, ["log1p", "log1p_standardize"])
        scaled = np.isin(kinds, ["standardize", "log1p_standardize"])
        fitted = [feature.fitted or Fitted() for feature in features]
        self._mean = np.array([_number(one.mean) if own else 0.0 for one, own in zip(fitted, scaled, strict=True)])
        self._std = np.array([_number(one.std) if own else 1.0 for one, own in zip(fitted, scaled, strict=True)])
        self._quantiles = [
            (place, _function(features[place])) for place in np.flatnonzero(kinds == "quantile").tolist()
        ]

    def write(self, raw: np.ndarray, floats: np.ndarray) -> bool:
        """Write what float64 [F] raw values become into a row of floats; where one is NaN, the row stays as it is.

        Returns:
            False where a value becomes infinite or too large for float32; the row is then of no use.
        """
        logs, kernels = np.log1p(np.abs(raw)), compiled.kernels()
        values = raw.copy() if self._quantiles else raw
        for place, transform in self._quantiles:
            values[place] = transform(raw[place])
        scale = scaled if kernels is None else kernels.scale_dense
        return bool(scale(values, logs, self._is_log, self._mean, self._std, self._places, floats))


def scaled(
    values: np.ndarray,
    logs: np.ndarray,
    is_log: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    places: np.ndarray,
    floats: np.ndarray,
) -> bool:
    """As ``contracts.kernels.scale_dense``, in NumPy."""
    given = ~np.isnan(values)
    with np.errstate(over="ignore", invalid="ignore"):
        found = ((np.where(is_log, np.copysign(logs, values), values) - mean) / std).astype(np.float32)
    floats[places[given]] = found[given]
    return bool(np.isfinite(found[given]).all())


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
