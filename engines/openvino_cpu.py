"""OpenVINO on the CPU, in exact fp32 or in BF16, with its threads, streams and precision set."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contracts.errors import AdsieveError, ArtifactError, MismatchError
from engines.buckets import spec_shapes
from engines.onnxruntime_cpu import onnx_specs

Precision = Literal["fp32", "bf16"]
Shapes = Mapping[str, tuple[int, ...]]
DEVICE = "CPU"
INSTALL = "pip install -r requirements/serve.txt"


class OpenVinoEngine:
    """One ONNX graph, compiled by OpenVINO for the latency of one call.

    Nothing is left to a default that could change a result or take a core: fp32 is fp32 throughout (by itself OpenVINO
    computes in BF16 where a CPU has it), threads are not pinned (two processes would pin to the same cores) and idle
    ones sleep. ``run`` releases the GIL while the graph computes and may be called from several threads: each call
    takes a request of its own from a pool, and calls share the streams. Results are copies.

    A graph compiled for fixed sizes is about a tenth faster than one for any; it costs half a second at load and its
    own copy of the weights. So sizes that most calls have are worth naming in ``buckets``, and no more.

    Args:
        path: The ``.onnx`` file.
        threads: Threads of all streams together.
        precision: ``bf16`` computes matrix products in BF16, inputs and outputs stay as the graph declares them.
        streams: Calls that run side by side, each on its share of the threads; more than one suits bulk work.
        buckets: Sizes of every dimension that the graph names; each combination is compiled for itself, and inputs of
            exactly these sizes run on it. None: all run on the graph for any size.

    Raises:
        AdsieveError: OpenVINO is not installed, or the CPU has no BF16.
        ArtifactError: The file is missing or no graph that OpenVINO can load.
        ValueError: A number or the precision is out of range.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        precision: Precision = "fp32",
        streams: int = 1,
        buckets: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if threads < 1 or not 1 <= streams <= threads:
            raise ValueError(f"threads and streams must be 1 <= streams <= threads, got {streams} and {threads}")
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision must be 'fp32' or 'bf16', got {precision!r}")
        if not path.is_file():
            raise ArtifactError(f"{path}: no such file, expected an ONNX graph")
        self.name = f"openvino_{precision}"
        self._openvino = _import_openvino()
        properties = _properties(self._openvino, threads, precision, streams)
        graph = _compiled(self._openvino, path, properties)
        self._path = path
        self.inputs = tuple(port.get_any_name() for port in graph.inputs)
        self.outputs = tuple(port.get_any_name() for port in graph.outputs)
        self._dtypes = tuple(port.element_type.to_dtype() for port in graph.inputs)
        self._any_size = _Requests(graph)
        self._sized = {
            tuple(shapes[name] for name in self.inputs): _Requests(_compiled(self._openvino, path, properties, shapes))
            for shapes in (spec_shapes(onnx_specs(path)[0], buckets) if buckets else ())
        }

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
        graph = self._sized.get(tuple(array.shape for array in arrays), self._any_size)
        try:
            with graph.one() as request:
                for position, array in enumerate(arrays):
                    request.set_input_tensor(position, self._openvino.Tensor(array, shared_memory=True))
                request.infer()
                return {name: np.array(request.get_output_tensor(i).data) for i, name in enumerate(self.outputs)}
        except RuntimeError as error:
            shapes = {name: array.shape for name, array in zip(self.inputs, arrays, strict=True)}
            raise MismatchError(f"{self._path}: the graph refuses inputs of shapes {shapes}: {error}") from error

    def _readable(self, name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The array itself where OpenVINO can read it in place, which it will not do with one that is read-only."""
        if array.dtype != dtype:
            raise MismatchError(f"{self._path}: input {name} takes {dtype}, got {array.dtype}")
        return array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")


class _Requests:
    """A compiled graph and the infer requests made for it so far."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._idle: deque[Any] = deque()  # its append and pop are atomic

    @contextmanager
    def one(self) -> Iterator[Any]:
        """A request that no other call uses meanwhile."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._graph.create_infer_request()
        try:
            yield request
        finally:
            self._idle.append(request)


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


def _compiled(openvino: Any, path: Path, properties: Mapping[str, Any], shapes: Shapes | None = None) -> Any:
    """The graph, for any sizes or for ``shapes`` alone."""
    core = openvino.Core()
    try:
        model = core.read_model(path)
        if shapes is not None:
            model.reshape({name: list(shape) for name, shape in shapes.items()})
        return core.compile_model(model, DEVICE, dict(properties))
    except Exception as error:  # parsers of the frontends raise types of their own
        raise ArtifactError(f"{path}: OpenVINO cannot load this graph: {error}") from error
