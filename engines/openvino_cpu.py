"""OpenVINO on the CPU, in exact fp32 or in BF16, with its threads, streams and precision set."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contracts.errors import AdsieveError, ArtifactError, MismatchError

Precision = Literal["fp32", "bf16"]
DEVICE = "CPU"
INSTALL = "pip install -r requirements/serve.txt"


class OpenVinoEngine:
    """One ONNX graph, compiled by OpenVINO for the latency of one call.

    Nothing is left to a default that could change a result or take a core: fp32 is fp32 throughout (by itself OpenVINO
    computes in BF16 where a CPU has it), threads are not pinned (two processes would pin to the same cores) and idle
    ones sleep. ``run`` releases the GIL while the graph computes and may be called from several threads: each call
    takes a request of its own from a pool, and calls share the streams. Results are copies.

    Args:
        path: The ``.onnx`` file.
        threads: Threads of all streams together.
        precision: ``bf16`` computes matrix products in BF16, inputs and outputs stay as the graph declares them.
        streams: Calls that run side by side, each on its share of the threads; more than one suits bulk work.

    Raises:
        AdsieveError: OpenVINO is not installed, or the CPU has no BF16.
        ArtifactError: The file is missing or no graph that OpenVINO can load.
        ValueError: A number or the precision is out of range.
    """

    def __init__(self, path: Path, *, threads: int, precision: Precision = "fp32", streams: int = 1) -> None:
        if threads < 1 or not 1 <= streams <= threads:
            raise ValueError(f"threads and streams must be 1 <= streams <= threads, got {streams} and {threads}")
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision must be 'fp32' or 'bf16', got {precision!r}")
        if not path.is_file():
            raise ArtifactError(f"{path}: no such file, expected an ONNX graph")
        self.name = f"openvino_{precision}"
        self._openvino = _import_openvino()
        self._graph = _compiled(self._openvino, path, _properties(self._openvino, threads, precision, streams))
        self._path = path
        self.inputs = tuple(port.get_any_name() for port in self._graph.inputs)
        self.outputs = tuple(port.get_any_name() for port in self._graph.outputs)
        self._dtypes = tuple(port.element_type.to_dtype() for port in self._graph.inputs)
        self._idle: deque[Any] = deque()  # its append and pop are atomic

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            MismatchError: The names of ``inputs`` are not exactly those of the graph, or an array has another type or
                shape than the graph takes.
        """
        if inputs.keys() != set(self.inputs):
            raise MismatchError(f"{self._path}: takes inputs {sorted(self.inputs)}, got {sorted(inputs)}")
        arrays = [
            self._readable(name, inputs[name], dtype) for name, dtype in zip(self.inputs, self._dtypes, strict=True)
        ]
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._graph.create_infer_request()
        try:
            for position, array in enumerate(arrays):
                request.set_input_tensor(position, self._openvino.Tensor(array, shared_memory=True))
            request.infer()
            return {name: np.array(request.get_output_tensor(i).data) for i, name in enumerate(self.outputs)}
        except RuntimeError as error:
            shapes = {name: array.shape for name, array in zip(self.inputs, arrays, strict=True)}
            raise MismatchError(f"{self._path}: the graph refuses inputs of shapes {shapes}: {error}") from error
        finally:
            self._idle.append(request)

    def _readable(self, name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The array itself where OpenVINO can read it in place, which it will not do with one that is read-only."""
        if array.dtype != dtype:
            raise MismatchError(f"{self._path}: input {name} takes {dtype}, got {array.dtype}")
        return array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")


def has_bf16() -> bool:
    """Whether this CPU multiplies matrices in BF16, as OpenVINO sees it.

    Raises:
        AdsieveError: OpenVINO is not installed.
    """
    return "BF16" in _import_openvino().Core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")


def _import_openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise AdsieveError(f"OpenVINO is not installed: {INSTALL}") from error
    return openvino


def _properties(openvino: Any, threads: int, precision: Precision, streams: int) -> dict[str, Any]:
    if precision == "bf16" and not has_bf16():
        capabilities = openvino.Core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
        raise AdsieveError(f"precision bf16 needs a CPU with BF16 instructions, this one has {sorted(capabilities)}")
    hint = openvino.properties.hint
    return {
        hint.performance_mode(): hint.PerformanceMode.LATENCY,
        hint.inference_precision(): openvino.Type.bf16 if precision == "bf16" else openvino.Type.f32,
        hint.enable_cpu_pinning(): False,
        openvino.properties.num_streams(): streams,
        openvino.properties.inference_num_threads(): threads,
    }


def _compiled(openvino: Any, path: Path, properties: Mapping[str, Any]) -> Any:
    try:
        return openvino.Core().compile_model(path, DEVICE, dict(properties))
    except Exception as error:  # parsers of the frontends raise types of their own
        raise ArtifactError(f"{path}: OpenVINO cannot load this graph: {error}") from error
