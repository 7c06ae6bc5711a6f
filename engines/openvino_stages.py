"""Two graphs of OpenVINO, one after the other, for calls of one size: the first on all threads, the second in parts."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engines.openvino_graphs import Shapes, infer_together, name_of, slice_of


@dataclass(frozen=True)
class _Call:
    """Infer requests of one call at a time, and the places of its inputs: buffers that OpenVINO keeps."""

    first: Any
    first_inputs: list[tuple[np.ndarray, str]]
    parts: list[Any]
    part_inputs: list[tuple[np.ndarray, str, int, int]]


class Stages:
    """Runs the first graph on all threads, then parts of the second side by side.

    What passes between them stays where the first graph writes it: it is bound to every part once, when a call's
    requests are made.

    Args:
        first: Compiled for fixed sizes, for one stream of all threads.
        seconds: The second graph, compiled for the size of each part.
        divided: The axis of each input that is divided between the parts; none of the first graph's is.
        bounds: Where each part begins, and where the last one ends.
        known: Names of inputs and outputs as the ONNX files have them.
    """

    def __init__(
        self,
        first: Any,
        seconds: Sequence[Any],
        divided: Mapping[str, int],
        bounds: Sequence[int],
        known: Collection[str],
    ) -> None:
        self._first, self._seconds, self._divided, self._known = first, seconds, divided, known
        self._bounds = list(pairwise(bounds))
        self._idle: deque[_Call] = deque()  # its append and pop are atomic

    @contextmanager
    def run(self, inputs: Mapping[str, np.ndarray]) -> Iterator[list[Any]]:
        """The infer requests of all parts, done; no other call uses them meanwhile."""
        try:
            call = self._idle.pop()
        except IndexError:
            call = self._new()
        try:
            for place, name in call.first_inputs:
                place[...] = inputs[name]
            call.first.start_async()
            try:
                for place, name, start, end in call.part_inputs:
                    place[...] = slice_of(inputs[name], self._divided.get(name), start, end)
            finally:
                call.first.wait()
            infer_together(call.parts)
            yield call.parts
        finally:
            self._idle.append(call)

    def _new(self) -> _Call:
        first = self._first.create_infer_request()
        between = {
            name_of(port, self._known): first.get_output_tensor(at) for at, port in enumerate(self._first.outputs)
        }
        names = [name_of(port, self._known) for port in self._first.inputs]
        call = _Call(first, [(first.get_input_tensor(at).data, name) for at, name in enumerate(names)], [], [])
        for graph, (start, end) in zip(self._seconds, self._bounds, strict=True):
            part = graph.create_infer_request()
            for at, port in enumerate(graph.inputs):
                name = name_of(port, self._known)
                if name in between:
                    part.set_input_tensor(at, between[name])
                else:
                    call.part_inputs.append((part.get_input_tensor(at).data, name, start, end))
            call.parts.append(part)
        return call


def staged(
    compile_first: Callable[[Shapes], Any],
    compile_second: Callable[[Shapes], Any],
    calls: Sequence[Shapes],
    *,
    first_inputs: Collection[str],
    divided: Mapping[str, int],
    bounds: Callable[[int], list[int]],
    known: Collection[str],
) -> Iterator[Stages]:
    """Stages for each of some calls; graphs for equal shapes are compiled once.

    Args:
        compile_first: The first graph for the shapes of its inputs.
        compile_second: The second, likewise.
        calls: Shapes of all inputs by name.
        first_inputs: Those of them that the first graph takes.
        divided: As for :class:`Stages`.
        bounds: Where the parts of a size begin and end.
        known: As for :class:`Stages`.
    """
    firsts, seconds = _Once(compile_first), _Once(compile_second)
    for shapes in calls:
        first = firsts({name: shape for name, shape in shapes.items() if name in first_inputs})
        between = {name_of(port, known): tuple(port.shape) for port in first.outputs}
        own = {name: shape for name, shape in shapes.items() if name not in first_inputs}
        ends = bounds(next(own[name][axis] for name, axis in divided.items()))
        parts = [
            between | {name: _part(shape, divided.get(name), end - start) for name, shape in own.items()}
            for start, end in pairwise(ends)
        ]
        yield Stages(first, [seconds(part) for part in parts], divided, ends, known)


def _part(shape: tuple[int, ...], axis: int | None, size: int) -> tuple[int, ...]:
    return shape if axis is None else (*shape[:axis], size, *shape[axis + 1 :])


class _Once:
    """Compiles for each set of shapes once."""

    def __init__(self, compile_for: Callable[[Shapes], Any]) -> None:
        self._compile_for = compile_for
        self._graphs: dict[frozenset[tuple[str, tuple[int, ...]]], Any] = {}

    def __call__(self, shapes: Shapes) -> Any:
        key = frozenset(shapes.items())
        if key not in self._graphs:
            self._graphs[key] = self._compile_for(shapes)
        return self._graphs[key]
