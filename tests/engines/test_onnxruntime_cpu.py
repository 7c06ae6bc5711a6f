"""The ONNX Runtime engine computes the graph, from many threads at once, and refuses what is not a graph."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from contracts.errors import ArtifactError, MismatchError
from engines.onnxruntime_cpu import OnnxRuntimeEngine

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_computes_the_graph(small_graph):
    engine = OnnxRuntimeEngine(small_graph, threads=1)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    outputs = engine.run({"x": x})
    assert (engine.name, engine.inputs, engine.outputs) == ("onnxruntime_cpu", ("x",), ("y", "z"))
    np.testing.assert_allclose(outputs["y"], np.maximum(x @ WEIGHT, 0), atol=1e-6)
    np.testing.assert_array_equal(outputs["z"], x + 1)


def test_runs_from_several_threads_at_once(small_graph):
    engine = OnnxRuntimeEngine(small_graph, threads=2)
    inputs = [np.full((2, 3), value, np.float32) for value in range(40)]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda x: engine.run({"x": x})["z"], inputs))
    for x, z in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(z, x + 1)


RUN = """
import sys
from pathlib import Path

from engines.onnxruntime_cpu import OnnxRuntimeEngine

OnnxRuntimeEngine(Path(sys.argv[1]), threads=1)
"""


def test_reports_nothing_to_the_vendor(small_graph, tmp_path):
    """What it would report is kept in the user's cache until it is sent, beside an id of the machine."""
    variables = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    variables |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", RUN, str(small_graph)], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in str(path).lower()] == []


def test_refuses_other_inputs(small_graph):
    engine = OnnxRuntimeEngine(small_graph, threads=1)
    with pytest.raises(MismatchError, match=r"takes inputs \['x'\], got \['x', 'y'\]"):
        engine.run({"x": np.zeros((1, 3), np.float32), "y": np.zeros(1, np.float32)})


def test_refuses_what_is_not_a_graph(tmp_path, small_graph):
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(small_graph.read_bytes()[:40])
    with pytest.raises(ArtifactError, match=r"truncated\.onnx: ONNX Runtime cannot load"):
        OnnxRuntimeEngine(truncated, threads=1)
    with pytest.raises(ArtifactError, match="no such file"):
        OnnxRuntimeEngine(tmp_path / "absent.onnx", threads=1)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        OnnxRuntimeEngine(small_graph, threads=0)
