"""OpenVINO's graphs: read, joined, compiled and run."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contracts.errors import ArtifactError

Shapes = Mapping[str, tuple[int, ...]]
DEVICE = "CPU"


def compiled(openvino: Any, paths: Sequence[Path], properties: Mapping[str, Any], shapes: Shapes | None = None) -> Any:
    """The graphs joined in order, for any sizes or for ``shapes`` alone."""
    core = openvino.Core()
    try:
        model = core.read_model(paths[0])
        for path in paths[1:]:
            model = _joined_models(openvino, model, core.read_model(path))
        if shapes is not None:
            model.reshape({name: list(shape) for name, shape in shapes.items()})
        return core.compile_model(model, DEVICE, dict(properties))
    except Exception as error:  # parsers of the frontends raise types of their own
        names = " and ".join(str(path) for path in paths)
        raise ArtifactError(f"{names}: OpenVINO cannot load this graph: {error}") from error


def _joined_models(openvino: Any, first: Any, second: Any) -> Any:
    """One model in which inputs of ``second`` are outputs of ``first``, by name."""
    given = {name: port.get_node().input_value(0) for port in first.outputs for name in port.get_names()}
    own = []
    for parameter in second.get_parameters():
        source = next((given[name] for name in parameter.output(0).get_names() if name in given), None)
        if source is None:
            own.append(parameter)
            continue
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(source)
    return openvino.Model(second.get_results(), [*first.get_parameters(), *own])


def infer_together(requests: Sequence[Any]) -> None:
    """Run all, each on a stream; none goes on when this returns or raises, so that all can be used again."""
    if len(requests) == 1:
        requests[0].infer()
        return
    for request in requests:
        request.start_async()
    failures: list[RuntimeError] = []
    for request in requests:
        try:
            request.wait()
        except RuntimeError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def name_of(port: Any, known: Collection[str]) -> str:
    """The name that the ONNX file has for an input or output; OpenVINO may know a tensor by several."""
    return next((name for name in port.get_names() if name in known), port.get_any_name())


def slice_of(array: np.ndarray, axis: int | None, start: int, end: int) -> np.ndarray:
    """A part of an array; all of it where it is not divided."""
    return array if axis is None else array[(slice(None),) * axis + (slice(start, end),)]


_Kept = tuple[Any, Callable[..., object], list[np.ndarray], list[np.ndarray]]
"""An infer request, what runs it, and where its inputs and outputs lie, as never changes in a graph of fixed sizes."""


class Requests:
    """A compiled graph and the infer requests made for it so far.

    Args:
        graph: Compiled.
        tensor: Makes a tensor that lies on an array, for a graph of any size. None: the graph's inputs have fixed
            sizes, and each request keeps them; a copy into them costs less than a tensor for each call.
    """

    def __init__(self, graph: Any, tensor: Callable[..., Any] | None = None) -> None:
        self._graph, self._tensor = graph, tensor
        self._idle: deque[_Kept] = deque()  # its append and pop are atomic

    @contextmanager
    def one(self, arrays: Sequence[np.ndarray]) -> Iterator[Any]:
        """A request that no other call uses meanwhile, with these inputs in order."""
        kept = self._taken()
        request, _, into, _ = kept
        try:
            for position, array in enumerate(arrays):
                if self._tensor is None:
                    into[position][...] = array
                else:
                    request.set_input_tensor(position, self._tensor(array, shared_memory=True))
            yield request
        finally:
            self._idle.append(kept)

    def copied(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs of a graph of fixed sizes for these inputs, both in order."""
        kept = self._taken()
        _, infer, into, out_of = kept
        try:
            for place, array in zip(into, arrays, strict=True):
                place[...] = array
            infer({}, share_outputs=True, decode_strings=False)
            return [place.copy() for place in out_of]
        finally:
            self._idle.append(kept)

    def _taken(self) -> "_Kept":
        try:
            return self._idle.pop()
        except IndexError:
            request = self._graph.create_infer_request()
        bare: Any = super(type(request), request)  # without what Python does first to inputs, of which there are none
        if self._tensor is not None:
            return request, bare.infer, [], []
        return (
            request,
            bare.infer,
            [request.get_input_tensor(position).data for position in range(len(self._graph.inputs))],
            [request.get_output_tensor(position).data for position in range(len(self._graph.outputs))],
        )
