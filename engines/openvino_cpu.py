"""OpenVINO on the CPU, in exact fp32 or in BF16, with its threads, streams and precision set."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np

from contracts.errors import AdsieveError, ArtifactError, MismatchError
from engines.buckets import spec_shapes
from engines.onnxruntime_cpu import onnx_specs
from engines.openvino_graphs import DEVICE, Requests, compiled, infer_together, name_of, slice_of
from engines.openvino_stages import Stages, staged
from engines.tensor_spec import TensorSpec

Precision = Literal["fp32", "bf16"]
SMALLEST_PART = 16
"""Rows below which dividing costs more than it saves."""
INSTALL = "pip install -r requirements/serve.txt"
_FIRST_USE = Lock()


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
        streams: Calls that run side by side, each on its share of the threads.
        divide: Name of a size, such as ``ads``, over which one call is divided between the streams, so that threads do
            not wait for one another at each operator: a fifth faster for 500 ads on two threads. A call too small to
            be divided runs on one stream, which is also the faster way for it.
        after: A graph that is joined in front: those of its outputs that have the name of an input of ``path`` become
            that input. One call then runs both, without handing tensors back and forth; if it is divided, every
            stream computes the first graph for itself.
        first_once: A divided call of a size in ``buckets`` runs the graph ``after`` once instead, on all threads, which
            have to wait for one another there. Nothing of that graph may have the size that is divided.
        buckets: Sizes of every dimension that the graph names; each combination is compiled for itself, and calls of
            exactly these sizes run on it. None: all run on the graph for any size.

    Raises:
        AdsieveError: OpenVINO is not installed, or the CPU has no BF16.
        ArtifactError: The file is missing or no graph that OpenVINO can load.
        ValueError: A number or the precision is out of range, or there is nothing of the name to divide.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        precision: Precision = "fp32",
        streams: int = 1,
        divide: str | None = None,
        after: Path | None = None,
        first_once: bool = False,
        buckets: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if threads < 1 or not 1 <= streams <= threads:
            raise ValueError(f"threads and streams must be 1 <= streams <= threads, got {streams} and {threads}")
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision must be 'fp32' or 'bf16', got {precision!r}")
        paths = [path] if after is None else [after, path]
        for part in paths:
            if not part.is_file():
                raise ArtifactError(f"{part}: no such file, expected an ONNX graph")
        self.name = f"openvino_{precision}"
        self._openvino = _import_openvino()
        properties = _properties(self._openvino, threads, precision, streams)
        graph = compiled(self._openvino, paths, properties)
        known = {spec.name: spec for part in paths for side in onnx_specs(part) for spec in side}
        self._path = path
        self.inputs = tuple(name_of(port, known) for port in graph.inputs)
        self.outputs = tuple(name_of(port, known) for port in graph.outputs)
        self._names = frozenset(self.inputs)
        self._dtypes = tuple(port.element_type.to_dtype() for port in graph.inputs)
        self._streams = streams
        self._divided, self._joined = (
            _axes_of(divide, [known[name] for name in names]) for names in (self.inputs, self.outputs)
        )
        if divide is not None and (not self._divided or self._joined.keys() != set(self.outputs)):
            raise ValueError(f"divide: an input and every output of {path.name} must have a size named {divide!r}")
        self._any_size = Requests(graph, self._openvino.Tensor)
        calls = spec_shapes([known[name] for name in self.inputs], buckets) if buckets else []
        self._staged: dict[tuple[tuple[int, ...], ...], Stages] = {}
        self._sized: dict[tuple[tuple[int, ...], ...], Requests] = {}
        if after is not None and first_once and streams > 1:
            if divide is None or any(_axes_of(divide, side) for side in onnx_specs(after)):
                raise ValueError(f"first_once: nothing of {after.name} may have the size that is divided, {divide!r}")
            whole = _properties(self._openvino, threads, precision, 1)
            found = staged(
                lambda shapes: compiled(self._openvino, [after], whole, shapes),
                lambda shapes: compiled(self._openvino, [path], properties, shapes),
                calls,
                first_inputs={spec.name for spec in onnx_specs(after)[0]},
                divided=self._divided,
                bounds=self._bounds,
                known=known,
            )
            keys = (tuple(shapes[name] for name in self.inputs) for shapes in calls)
            self._staged = dict(zip(keys, found, strict=True))
        elif buckets:
            for shapes in spec_shapes([known[name] for name in self.inputs], self._of_parts(divide, buckets)):
                key = tuple(shapes[name] for name in self.inputs)
                self._sized[key] = Requests(compiled(self._openvino, paths, properties, shapes))

    @property
    def graphs(self) -> list[object]:
        """Each graph that was compiled; freeing one takes some 25 ms with the interpreter's lock."""
        return [self._any_size, *self._sized.values(), *self._staged.values()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name.

        Raises:
            MismatchError: The names of ``inputs`` are not exactly those of the graph, or an array has another type or
                shape than the graph takes.
        """
        if inputs.keys() != self._names:
            raise MismatchError(f"{self._path}: takes inputs {sorted(self.inputs)}, got {sorted(inputs)}")
        arrays = [inputs[name] for name in self.inputs]
        shape = tuple([array.shape for array in arrays])
        try:
            if self._streams == 1 and (graph := self._sized.get(shape)) is not None:
                return self._run_sized(graph, arrays)
            stages = self._staged.get(shape)
            return self._run_parts(self._parts(inputs)) if stages is None else self._run_stages(stages, inputs)
        except RuntimeError as error:
            shapes = {name: inputs[name].shape for name in self.inputs}
            raise MismatchError(f"{self._path}: the graph refuses inputs of shapes {shapes}: {error}") from error

    def _run_sized(self, graph: Requests, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """A call that is not divided, of sizes that were prepared."""
        for name, array, dtype in zip(self.inputs, arrays, self._dtypes, strict=True):
            self._check_type(name, array, dtype)
        return dict(zip(self.outputs, graph.copied(arrays), strict=True))

    def _parts(self, inputs: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
        """The inputs in order, once for each stream that is to run."""
        size = min((inputs[name].shape[axis] for name, axis in self._divided.items()), default=0)
        bounds = self._bounds(size)
        return [
            [
                self._readable(name, slice_of(inputs[name], self._divided.get(name), *part), dtype)
                for name, dtype in zip(self.inputs, self._dtypes, strict=True)
            ]
            for part in pairwise(bounds)
        ]

    def _bounds(self, size: int) -> list[int]:
        """Where each stream's part of a divided size begins, and where the last one ends."""
        count = max(1, min(self._streams, size // SMALLEST_PART))
        return [size * part // count for part in range(count + 1)]

    def _of_parts(self, divide: str | None, buckets: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
        """The sizes that a stream sees in calls of these sizes."""
        if divide is None:
            return dict(buckets)
        parts = {end - start for size in buckets[divide] for start, end in pairwise(self._bounds(size))}
        return {**buckets, divide: sorted(parts)}

    def _run_parts(self, parts: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
        with ExitStack() as stack:
            requests = []
            for arrays in parts:
                graph = self._sized.get(tuple(array.shape for array in arrays), self._any_size)
                requests.append(stack.enter_context(graph.one(arrays)))
            infer_together(requests)
            return self._joined_outputs(requests)

    def _run_stages(self, stages: Stages, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for name, dtype in zip(self.inputs, self._dtypes, strict=True):
            self._check_type(name, inputs[name], dtype)
        with stages.run(inputs) as requests:
            return self._joined_outputs(requests)

    def _joined_outputs(self, requests: Sequence[Any]) -> dict[str, np.ndarray]:
        return {name: self._joined_output(requests, at, name) for at, name in enumerate(self.outputs)}

    def _joined_output(self, requests: Sequence[Any], at: int, name: str) -> np.ndarray:
        found = [request.get_output_tensor(at).data for request in requests]
        return np.array(found[0]) if len(found) == 1 else np.concatenate(found, axis=self._joined[name])

    def _readable(self, name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The array itself where OpenVINO can read it in place, which it will not do with one that is read-only."""
        self._check_type(name, array, dtype)
        return array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")

    def _check_type(self, name: str, array: np.ndarray, dtype: np.dtype) -> None:
        if array.dtype != dtype:
            raise MismatchError(f"{self._path}: input {name} takes {dtype}, got {array.dtype}")


def _axes_of(size: str | None, specs: Sequence[TensorSpec]) -> dict[str, int]:
    """The axis of each tensor that has this size."""
    return {spec.name: axis for spec in specs for axis, name in spec.axes.items() if name == size}


def has_bf16() -> bool:
    """Whether this CPU multiplies matrices in BF16, as OpenVINO sees it.

    Raises:
        AdsieveError: OpenVINO is not installed.
    """
    return "BF16" in _import_openvino().Core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")


def _import_openvino() -> Any:
    """OpenVINO, without its telemetry, which it does without where that cannot be imported.

    On import it would report home from a process that is forked in a thread. Its table of types is filled at first
    use, in a way that two threads at once never come back from: one has the interpreter, the other the table.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    with _FIRST_USE:
        try:
            import openvino
        except ImportError as error:
            raise AdsieveError(f"OpenVINO is not installed: {INSTALL}") from error
        openvino.Type.f32.to_dtype()
    return openvino


def _properties(openvino: Any, threads: int, precision: Precision, streams: int) -> dict[str, Any]:
    if precision == "bf16" and not has_bf16():
        capabilities = openvino.Core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
        raise AdsieveError(f"precision bf16 needs a CPU with BF16 instructions, this one has {sorted(capabilities)}")
    hint = openvino.properties.hint
    return {
        hint.performance_mode(): hint.PerformanceMode.THROUGHPUT if streams > 1 else hint.PerformanceMode.LATENCY,
        hint.inference_precision(): openvino.Type.bf16 if precision == "bf16" else openvino.Type.f32,
        hint.enable_cpu_pinning(): False,
        openvino.properties.num_streams(): streams,
        openvino.properties.inference_num_threads(): threads,
    }
