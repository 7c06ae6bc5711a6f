"""Does an engine compute what the trained module computed? Checked on the rows a bundle carries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from contracts.errors import ArtifactError
from engines.rank_correlation import rank_correlation

INPUT_PREFIX = "in."
OUTPUT_PREFIX = "out."

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Parity:
    """What was measured against saved outputs: the largest error and the rank correlation of each output."""

    errors: dict[str, float]
    rank_correlations: dict[str, float]


@dataclass(frozen=True)
class ParityGate:
    """What an engine must keep to serve.

    ``tolerance`` bounds every error; ``min_rank_correlation`` asks that the order is kept as well, for engines whose
    rounding is large beside the differences between ads. ``None`` asks nothing of the order.
    """

    tolerance: float
    min_rank_correlation: float | None = None

    def refusal(self, parity: Parity) -> str | None:
        """Why ``parity`` does not pass, or ``None`` if it does."""
        for name, error in parity.errors.items():
            if not error <= self.tolerance:  # NaN fails
                return f"output {name} is {error:.3g} from the trained module, allowed {self.tolerance:.3g}"
        least = self.min_rank_correlation
        for name, correlation in parity.rank_correlations.items():
            if least is not None and not correlation >= least:
                return (
                    f"output {name} has rank correlation {correlation:.6g} with the trained module, wanted {least:.6g}"
                )
        return None


FP32_GATE = ParityGate(1e-5)
"""On probabilities: fp32 engines sum in other orders."""
BF16_GATE = ParityGate(6e-3, min_rank_correlation=0.999)
"""On probabilities: BF16 keeps 8 bits of a factor, sums stay fp32."""


def measure_parity(run: Run, tensors: Mapping[str, np.ndarray], *, source: str) -> Parity:
    """Compare ``run`` with saved outputs.

    The error of a value is ``|computed - saved| / max(1, |saved|)``: absolute when small, relative when large.

    Args:
        run: Takes arrays by input name, returns arrays by output name; for several graphs, a function that chains them.
        tensors: ``in.<name>`` and ``out.<name>`` arrays, as ``parity.safetensors`` holds them.
        source: What is checked, for messages.

    Raises:
        ArtifactError: An output is missing or of another shape, or ``tensors`` holds no outputs.
    """
    expected = _with_prefix(tensors, OUTPUT_PREFIX)
    if not expected:
        raise ArtifactError(f"{source}: no parity outputs saved, expected tensors named {OUTPUT_PREFIX}<output>")
    computed = run(parity_inputs(tensors))
    outputs = {name: _output(computed, name, values, source) for name, values in expected.items()}
    return Parity(
        errors={name: _error(outputs[name], values) for name, values in expected.items()},
        rank_correlations={name: _order(outputs[name], values) for name, values in expected.items()},
    )


def check_parity(
    run: Run,
    tensors: Mapping[str, np.ndarray],
    *,
    tolerance: float,
    source: str,
    min_rank_correlation: float | None = None,
) -> dict[str, float]:
    """Measure parity, raise where it does not pass, and return the largest error of each output.

    Args:
        run: As :func:`measure_parity` takes it.
        tensors: ``in.<name>`` and ``out.<name>`` arrays.
        tolerance: Largest error allowed: 1e-5 for another fp32 engine, 6e-3 for BF16, of probabilities.
        source: What is checked, for messages.
        min_rank_correlation: Smallest Spearman correlation allowed, of every column of every output.

    Raises:
        ArtifactError: An output is missing, of another shape, not finite, further away than ``tolerance`` or in
            another order; or ``tensors`` holds no outputs.

    Example:
        >>> check_parity(
        ...     lambda inputs: {"y": inputs["x"] * 2},
        ...     {"in.x": np.ones(3, np.float32), "out.y": np.full(3, 2, np.float32)},
        ...     tolerance=1e-4,
        ...     source="doubler",
        ... )
        {'y': 0.0}
    """
    parity = measure_parity(run, tensors, source=source)
    refusal = ParityGate(tolerance, min_rank_correlation).refusal(parity)
    if refusal:
        raise ArtifactError(f"{source}: {refusal}")
    return parity.errors


def parity_inputs(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs among ``tensors``, by the names that a run takes."""
    return _with_prefix(tensors, INPUT_PREFIX)


def _with_prefix(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def _output(computed: Mapping[str, np.ndarray], name: str, expected: np.ndarray, source: str) -> np.ndarray:
    if name not in computed:
        raise ArtifactError(f"{source}: output {name} is missing, got {sorted(computed)}")
    actual = np.asarray(computed[name])
    if actual.shape != expected.shape:
        raise ArtifactError(f"{source}: output {name} has shape {actual.shape}, saved was {expected.shape}")
    return actual


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    if actual.size == 0:
        return 0.0
    wanted = expected.astype(np.float64)
    difference = np.abs(actual.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
    return float(difference.max())  # NaN propagates and fails every gate


def _order(actual: np.ndarray, expected: np.ndarray) -> float:
    """Scalars have no order."""
    return rank_correlation(expected, actual) if expected.ndim else 1.0
