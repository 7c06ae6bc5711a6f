"""Does an engine compute what the trained module computed? Checked on the rows a bundle carries."""

from collections.abc import Callable, Mapping

import numpy as np

from contracts.errors import ArtifactError

INPUT_PREFIX = "in."
OUTPUT_PREFIX = "out."

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def check_parity(run: Run, tensors: Mapping[str, np.ndarray], *, tolerance: float, source: str) -> dict[str, float]:
    """Compare ``run`` with saved outputs and return the largest error of each.

    The error of a value is ``|computed - saved| / max(1, |saved|)``: absolute when small, relative when large.

    Args:
        run: Takes arrays by input name, returns arrays by output name; for several graphs, a function that chains them.
        tensors: ``in.<name>`` and ``out.<name>`` arrays, as ``parity.safetensors`` holds them.
        tolerance: Largest error allowed: about 1e-4 for another fp32 engine, 1e-2 for BF16.
        source: What is checked, for messages.

    Raises:
        ArtifactError: An output is missing, of another shape, not finite, or further away than ``tolerance``; or
            ``tensors`` holds no outputs.

    Example:
        >>> check_parity(
        ...     lambda inputs: {"y": inputs["x"] * 2},
        ...     {"in.x": np.ones(3, np.float32), "out.y": np.full(3, 2, np.float32)},
        ...     tolerance=1e-4,
        ...     source="doubler",
        ... )
        {'y': 0.0}
    """
    inputs = _with_prefix(tensors, INPUT_PREFIX)
    expected = _with_prefix(tensors, OUTPUT_PREFIX)
    if not expected:
        raise ArtifactError(f"{source}: no parity outputs saved, expected tensors named {OUTPUT_PREFIX}<output>")
    computed = run(inputs)
    errors = {name: _error(computed, name, values, source) for name, values in expected.items()}
    for name, error in errors.items():
        if not error <= tolerance:
            raise ArtifactError(
                f"{source}: output {name} is {error:.3g} from the trained module, allowed {tolerance:.3g}"
            )
    return errors


def _with_prefix(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def _error(computed: Mapping[str, np.ndarray], name: str, expected: np.ndarray, source: str) -> float:
    if name not in computed:
        raise ArtifactError(f"{source}: output {name} is missing, got {sorted(computed)}")
    actual = np.asarray(computed[name])
    if actual.shape != expected.shape:
        raise ArtifactError(f"{source}: output {name} has shape {actual.shape}, saved was {expected.shape}")
    if actual.size == 0:
        return 0.0
    wanted = expected.astype(np.float64)
    difference = np.abs(actual.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
    return float(difference.max())  # NaN propagates and fails every tolerance
