"""Parity accepts equal outputs and names what differs."""

import numpy as np
import pytest

from contracts.errors import ArtifactError
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.parity import check_parity

X = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
SAVED = {"in.x": X, "out.y": np.maximum(X @ WEIGHT, 0), "out.z": X + 1}


def test_an_engine_equals_its_saved_outputs(small_graph):
    errors = check_parity(OnnxRuntimeEngine(small_graph, threads=1).run, SAVED, tolerance=1e-5, source="small")
    assert errors.keys() == {"y", "z"}
    assert max(errors.values()) <= 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y + 0.01, r"small: output y is 0\.01\d* from the trained module, allowed 1e-05"),
        (lambda y: y[:3], r"output y has shape \(6, 4\), saved was \(3, 4\)"),
        (lambda y: np.where(y == y.max(), np.nan, y), "output y is nan from"),
    ],
    ids=["off", "shape", "nan"],
)
def test_a_difference_is_named(small_graph, change, message):
    saved = SAVED | {"out.y": change(SAVED["out.y"]).astype(np.float32)}
    with pytest.raises(ArtifactError, match=message):
        check_parity(OnnxRuntimeEngine(small_graph, threads=1).run, saved, tolerance=1e-5, source="small")


def test_large_values_are_compared_relatively():
    large = {"in.x": X, "out.x": X * 1e6 * (1 + 1e-6)}
    assert check_parity(lambda inputs: {"x": inputs["x"] * 1e6}, large, tolerance=1e-5, source="large")["x"] < 1e-5


def test_missing_outputs_are_named():
    with pytest.raises(ArtifactError, match=r"output z is missing, got \['y'\]"):
        check_parity(lambda inputs: {"y": inputs["x"]}, {"in.x": X, "out.z": X}, tolerance=1, source="s")
    with pytest.raises(ArtifactError, match="no parity outputs saved"):
        check_parity(lambda inputs: {}, {"in.x": X}, tolerance=1, source="s")
