"""Small ONNX graphs: y = relu(x w), z = x + 1; and a deeper one with a masked mean over events."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
DEPTH, WIDTH = 4, 16


@pytest.fixture
def small_graph(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"]),
            helper.make_node("Relu", ["xw"], ["y"]),
            helper.make_node("Add", ["x", "one"], ["z"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["rows", 3]),
        ],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    return _saved(graph, tmp_path / "small.onnx")


@pytest.fixture
def deep_graph(tmp_path: Path) -> Path:
    """Events x [rows, length, 16] and mask [rows, length] to their masked mean, ``pooled`` [rows, 16], and on through
    four layers to ``probabilities`` [rows, 2]."""
    rng = np.random.default_rng(11)
    weights = {f"w{i}": rng.normal(size=(WIDTH, WIDTH)) * 0.3 for i in range(DEPTH)}
    weights |= {"head": rng.normal(size=(WIDTH, 2)) * 0.5, "floor": np.ones(1)}
    axes = {"last": np.array([2]), "events": np.array([1])}
    nodes = [
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", ["x", "mask3"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "events"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "events"], ["count"], keepdims=1),
        helper.make_node("Max", ["count", "floor"], ["divisor"]),
        helper.make_node("Div", ["sum", "divisor"], ["pooled"]),
    ]
    hidden = "pooled"
    for i in range(DEPTH):
        nodes += [
            helper.make_node("MatMul", [hidden, f"w{i}"], [f"product{i}"]),
            helper.make_node("Tanh", [f"product{i}"], [f"hidden{i}"]),
        ]
        hidden = f"hidden{i}"
    nodes += [
        helper.make_node("MatMul", [hidden, "head"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["probabilities"]),
    ]
    graph = helper.make_graph(
        nodes,
        "deep",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "length", WIDTH]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["rows", "length"]),
        ],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", 2]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["rows", WIDTH]),
        ],
        [
            *(numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()),
            *(numpy_helper.from_array(value.astype(np.int64), name) for name, value in axes.items()),
        ],
    )
    return _saved(graph, tmp_path / "deep.onnx")


@pytest.fixture
def second_graph(tmp_path: Path) -> Path:
    """``scaled = pooled * scale``, of what the deep graph gives."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["pooled", "scale"], ["scaled"])],
        "second",
        [
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["rows", WIDTH]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, ["rows", 1]),
        ],
        [helper.make_tensor_value_info("scaled", TensorProto.FLOAT, ["rows", WIDTH])],
        [],
    )
    return _saved(graph, tmp_path / "second.onnx")


@pytest.fixture
def request_graph(tmp_path: Path) -> Path:
    """``state = exp(request)``."""
    graph = helper.make_graph(
        [helper.make_node("Exp", ["request"], ["state"])],
        "request",
        [helper.make_tensor_value_info("request", TensorProto.FLOAT, ["requests", 1, WIDTH])],
        [helper.make_tensor_value_info("state", TensorProto.FLOAT, ["requests", 1, WIDTH])],
        [],
    )
    return _saved(graph, tmp_path / "request.onnx")


@pytest.fixture
def ads_graph(tmp_path: Path) -> Path:
    """``answer = ad * state``, of what the request graph gives."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["ad", "state"], ["answer"])],
        "ads",
        [
            helper.make_tensor_value_info("state", TensorProto.FLOAT, ["requests", 1, WIDTH]),
            helper.make_tensor_value_info("ad", TensorProto.FLOAT, ["requests", "ads", WIDTH]),
        ],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["requests", "ads", WIDTH])],
        [],
    )
    return _saved(graph, tmp_path / "ads.onnx")


@pytest.fixture
def deep_inputs() -> dict[str, np.ndarray]:
    """37 rows of up to 10 events; some histories are empty, the longest has 7."""
    rng = np.random.default_rng(12)
    lengths = rng.integers(0, 8, 37)
    lengths[5] = 7
    return {
        "x": rng.normal(size=(37, 10, WIDTH)).astype(np.float32),
        "mask": (np.arange(10) < lengths[:, None]).astype(np.float32),
    }


def _saved(graph: onnx.GraphProto, path: Path) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, path)
    return path
