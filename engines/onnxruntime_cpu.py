"""ONNX Runtime on the CPU, with its threads set and spinning off, and without its reports to its vendor."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

# Read when it is imported; else each process asks for a host of the vendor, and writes into the user's cache.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

from contracts.errors import ArtifactError, MismatchError
from engines.tensor_spec import TensorSpec

LOG_ERRORS_ONLY = 3


class OnnxRuntimeEngine:
    """One ONNX graph in an ONNX Runtime session of its own.

    Spinning is off: idle pool threads that spin take the cores from whatever else runs in the process (16 ms at p95
    beside torch). ``run`` releases the GIL while the graph computes and may be called from several threads.

    Args:
        path: The ``.onnx`` file.
        threads: Threads of one operator; operators run one after another.

    Raises:
        ArtifactError: The file is missing or no graph that ONNX Runtime can load.
        ValueError: ``threads`` is not positive.
    """

    name = "onnxruntime_cpu"

    def __init__(self, path: Path, *, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        if not path.is_file():
            raise ArtifactError(f"{path}: no such file, expected an ONNX graph")
        try:
            self._session = onnxruntime.InferenceSession(path, _options(threads), providers=["CPUExecutionProvider"])
        except Exception as error:  # its exception types share no root of their own
            raise ArtifactError(f"{path}: ONNX Runtime cannot load this graph: {error}") from error
        self._path = path
        self.inputs = tuple(node.name for node in self._session.get_inputs())
        self.outputs = tuple(node.name for node in self._session.get_outputs())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            MismatchError: The names of ``inputs`` are not exactly those of the graph.
        """
        if inputs.keys() != set(self.inputs):
            raise MismatchError(f"{self._path}: takes inputs {sorted(self.inputs)}, got {sorted(inputs)}")
        return dict(zip(self.outputs, self._session.run(None, dict(inputs)), strict=True))


def onnx_specs(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of a graph, sizes that vary by the names that the exporter gave them.

    Raises:
        ArtifactError: The file is missing or no graph that ONNX Runtime can load.
    """
    session = OnnxRuntimeEngine(path, threads=1)._session
    inputs, outputs = (tuple(map(_spec, nodes)) for nodes in (session.get_inputs(), session.get_outputs()))
    return inputs, outputs


def _spec(node: onnxruntime.NodeArg) -> TensorSpec:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    shape = [size if isinstance(size, int) else str(size) for size in node.shape]
    return TensorSpec(name=node.name, dtype={"float": "float32", "double": "float64"}.get(kind, kind), shape=shape)


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = LOG_ERRORS_ONLY
    return options
