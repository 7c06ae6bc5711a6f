"""Shape buckets: a graph meets a few sizes only, whatever sizes arrive.

Engines that build, tune or record for a shape (TensorRT, CUDA graphs, OpenVINO's caches) then do so once a bucket,
before the service is ready. A dimension has a name, such as ``rows``, wherever it occurs; arrays are padded up to the
bucket that holds them, and results cut back.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from contracts.errors import MismatchError
from engines.protocol import Engine
from engines.tensor_spec import TensorSpec

Axes = Mapping[str, Mapping[int, str]]
"""Array name to the dimension that each of its axes holds; axes that never vary are left out."""


def bucket_for(size: int, buckets: Sequence[int]) -> int:
    """The smallest of the ascending ``buckets`` that holds ``size``; ``size`` itself if it is 0 or above all of them.

    Example:
        >>> [bucket_for(size, (64, 128)) for size in (0, 1, 64, 65, 200)]
        [0, 64, 64, 128, 200]
    """
    position = bisect_left(buckets, size)
    return buckets[position] if size > 0 and position < len(buckets) else size


def pad(array: np.ndarray, axis: int, size: int, *, repeat: bool) -> np.ndarray:
    """``array`` with ``axis`` grown to ``size``: by copies of its first slice, or by zeros.

    Rows are repeated, since a row of zeros may be one that no model has met (an index, a division); events are zeros,
    which their mask, padded the same way, rules out.

    Example:
        >>> pad(np.array([[1, 2]]), 1, 4, repeat=False)
        array([[1, 2, 0, 0]])
    """
    missing = size - array.shape[axis]
    if missing <= 0:
        return array
    padded = np.empty((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)
    before = (slice(None),) * axis
    padded[(*before, slice(0, -missing))] = array
    padded[(*before, slice(-missing, None))] = array[(*before, slice(0, 1))] if repeat else 0
    return padded


def used_length(mask: np.ndarray) -> int:
    """Length of the longest history of a mask [R, L] whose events come first; at least 1, so that no axis is empty.

    Example:
        >>> used_length(np.array([[1, 1, 0, 0], [1, 0, 0, 0]], bool))
        2
    """
    used = np.flatnonzero(mask.any(axis=0))
    return int(used[-1]) + 1 if len(used) else 1


class BucketedEngine:
    """An engine whose inputs are padded to shape buckets and whose outputs are cut back.

    Equal to the engine itself wherever rows do not read one another and masks rule padding out. A size above the
    largest bucket goes through as it is, or in pieces of the largest bucket; no rows at all go through as they are.

    Args:
        engine: Runs the graph.
        inputs: Dimensions of each input that varies.
        outputs: Dimensions of each output that varies.
        buckets: Ascending sizes of each dimension. One that is absent here is not padded.
        zeros: Dimensions padded with zeros: only those that a mask among the same graph's inputs rules out. The others
            repeat their first slice.
        splits: Dimensions run in pieces where they are above their largest bucket: those of which no place reads
            another. An output without the dimension is taken from the first piece.

    Raises:
        ValueError: Buckets are not positive and ascending.

    Example:
        >>> from types import SimpleNamespace
        >>> seen = []
        >>> doubler = SimpleNamespace(name="doubler", run=lambda x: seen.append(x["x"].shape) or {"y": 2 * x["x"]})
        >>> engine = BucketedEngine(
        ...     doubler, inputs={"x": {0: "rows"}}, outputs={"y": {0: "rows"}}, buckets={"rows": (4, 8)}
        ... )
        >>> engine.run({"x": np.arange(3)})["y"], seen
        (array([0, 2, 4]), [(4,)])
    """

    def __init__(
        self,
        engine: Engine,
        *,
        inputs: Axes,
        outputs: Axes,
        buckets: Mapping[str, Sequence[int]],
        zeros: Sequence[str] = (),
        splits: Sequence[str] = (),
    ) -> None:
        for dim, sizes in buckets.items():
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"buckets of {dim} must be positive and ascending, got {list(sizes)}")
        self.name = engine.name
        self._engine = engine
        self._inputs, self._outputs = inputs, outputs
        self._buckets = {dim: tuple(sizes) for dim, sizes in buckets.items()}
        self._zeros = frozenset(zeros)
        self._pieces = {dim: self._buckets[dim][-1] for dim in splits}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name, in the sizes of ``inputs``.

        Raises:
            MismatchError: Inputs disagree about the size of a dimension, or what the engine raises.
        """
        sizes = dim_sizes(inputs, self._inputs)
        for dim, largest in self._pieces.items():
            if sizes[dim] > largest:
                return self._in_pieces(inputs, dim, sizes[dim], largest)
        targets = {dim: bucket_for(size, self._buckets.get(dim, ())) for dim, size in sizes.items()}
        if 0 in sizes.values() or targets == sizes:
            return self._engine.run(inputs)
        padded = {name: self._padded(name, array, targets) for name, array in inputs.items()}
        outputs = self._engine.run(padded)
        return {name: self._cut(name, array, sizes) for name, array in outputs.items()}

    def _in_pieces(self, inputs: Mapping[str, np.ndarray], dim: str, size: int, piece: int) -> dict[str, np.ndarray]:
        pieces = [
            self.run({name: self._piece(name, array, dim, start, start + piece) for name, array in inputs.items()})
            for start in range(0, size, piece)
        ]
        joined = dict(pieces[0])
        for name, axes in self._outputs.items():
            for axis in (axis for axis, other in axes.items() if other == dim):
                joined[name] = np.concatenate([outputs[name] for outputs in pieces], axis=axis)
        return joined

    def _piece(self, name: str, array: np.ndarray, dim: str, start: int, stop: int) -> np.ndarray:
        keep = [slice(None)] * array.ndim
        for axis in (axis for axis, other in self._inputs.get(name, {}).items() if other == dim):
            keep[axis] = slice(start, stop)
        return np.ascontiguousarray(array[tuple(keep)])

    def _padded(self, name: str, array: np.ndarray, targets: Mapping[str, int]) -> np.ndarray:
        for axis, dim in self._inputs.get(name, {}).items():
            array = pad(array, axis, targets[dim], repeat=dim not in self._zeros)
        return array

    def _cut(self, name: str, array: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        keep = [slice(None)] * array.ndim
        for axis, dim in self._outputs.get(name, {}).items():
            keep[axis] = slice(0, sizes[dim])
        return array[tuple(keep)]


def dim_sizes(arrays: Mapping[str, np.ndarray], axes: Axes) -> dict[str, int]:
    """Size of each named dimension, the same wherever it occurs.

    Raises:
        MismatchError: Two arrays disagree.

    Example:
        >>> dim_sizes({"state": np.ones((2, 8)), "ads": np.ones((2, 3, 4))}, {"ads": {0: "requests", 1: "ads"}})
        {'requests': 2, 'ads': 3}
    """
    sizes: dict[str, int] = {}
    for name in (name for name in axes if name in arrays):
        for axis, dim in axes[name].items():
            size = arrays[name].shape[axis]
            if sizes.setdefault(dim, size) != size:
                raise MismatchError(f"input {name} has {size} {dim}, another has {sizes[dim]}")
    return sizes


def bucket_shapes(
    axes: Axes, shapes: Mapping[str, Sequence[int | None]], buckets: Mapping[str, Sequence[int]]
) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of all inputs in every combination of buckets, the largest combination first.

    Args:
        axes: Dimensions of each input that varies.
        shapes: Shape of each input; sizes at the axes that vary do not matter.
        buckets: Sizes of every dimension among ``axes``.

    Raises:
        ValueError: A dimension has no buckets.

    Example:
        >>> bucket_shapes({"x": {0: "rows"}}, {"x": (None, 3)}, {"rows": (1, 4)})
        [{'x': (4, 3)}, {'x': (1, 3)}]
    """
    dims = sorted({dim for places in axes.values() for dim in places.values()})
    if missing := [dim for dim in dims if not buckets.get(dim)]:
        raise ValueError(
            f"no buckets for {', '.join(missing)}, got buckets of {', '.join(sorted(buckets)) or 'nothing'}"
        )
    combinations = [dict(zip(dims, sizes, strict=True)) for sizes in product(*(buckets[dim] for dim in dims))]
    filled = [
        {name: _shape(shape, axes.get(name, {}), sizes) for name, shape in shapes.items()} for sizes in combinations
    ]
    return sorted(filled, key=lambda inputs: -sum(prod(shape) for shape in inputs.values()))


def bucketed(
    engine: Engine,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    buckets: Mapping[str, Sequence[int]],
    zeros: Sequence[str] = (),
    splits: Sequence[str] = (),
) -> BucketedEngine:
    """A :class:`BucketedEngine` whose dimensions are those that the graph itself names."""
    return BucketedEngine(
        engine,
        inputs={spec.name: spec.axes for spec in inputs},
        outputs={spec.name: spec.axes for spec in outputs},
        buckets=buckets,
        zeros=zeros,
        splits=[dim for dim in splits if any(dim in spec.axes.values() for spec in inputs)],
    )


def spec_shapes(inputs: Sequence[TensorSpec], buckets: Mapping[str, Sequence[int]]) -> list[dict[str, tuple[int, ...]]]:
    """:func:`bucket_shapes` of what a graph names."""
    shapes = {spec.name: [None if isinstance(size, str) else size for size in spec.shape] for spec in inputs}
    return bucket_shapes({spec.name: spec.axes for spec in inputs}, shapes, buckets)


def _shape(shape: Sequence[int | None], places: Mapping[int, str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[places[axis]] if axis in places else int(size or 0) for axis, size in enumerate(shape))
