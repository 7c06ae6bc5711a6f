"""One small ONNX graph: y = relu(x w), z = x + 1."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    path = tmp_path / "small.onnx"
    onnx.save(model, path)
    return path
