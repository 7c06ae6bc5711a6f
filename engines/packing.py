"""Several arrays in one buffer, so that a device takes or gives them in one copy.

A copy to a GPU costs some microseconds to start, whatever its size, and only one from pinned memory runs at full speed.
So inputs are written side by side into one pinned buffer, cross in one piece, and are read there where they lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

ALIGNMENT = 256
"""What CUDA's own allocations are aligned to, and so what kernels may expect of an input."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One array in a packed buffer: ``nbytes`` from ``offset`` on."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Packing:
    """Where arrays of fixed types and shapes lie in one buffer of bytes.

    Args:
        arrays: Name to (type, shape), in the order in which they lie.

    Example:
        >>> packing = Packing({"x": (np.dtype("f4"), (2, 3)), "mask": (np.dtype("?"), (2,))})
        >>> [(part.name, part.offset) for part in packing.parts], packing.nbytes
        ([('x', 0), ('mask', 256)], 512)
        >>> buffer = np.zeros(packing.nbytes, np.uint8)
        >>> packing.write({"x": np.ones((2, 3), "f4"), "mask": np.array([True, False])}, buffer)
        >>> packing.views(buffer)["mask"]
        array([ True, False])
    """

    def __init__(self, arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> None:
        parts, offset = [], 0
        for name, (dtype, shape) in arrays.items():
            parts.append(Part(name=name, dtype=np.dtype(dtype), shape=tuple(shape), offset=offset))
            offset += -(-parts[-1].nbytes // ALIGNMENT) * ALIGNMENT
        self.parts = tuple(parts)
        self.nbytes = offset

    def views(self, buffer: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays by name, as views of ``buffer`` (uint8, at least ``nbytes`` long)."""
        return {
            part.name: buffer[part.offset : part.offset + part.nbytes].view(part.dtype).reshape(part.shape)
            for part in self.parts
        }

    def write(self, arrays: Mapping[str, np.ndarray], buffer: np.ndarray) -> None:
        """Copy ``arrays`` to their places; any memory layout will do, another type or shape will not.

        Raises:
            ValueError: An array has another type or shape.
        """
        for part, view in zip(self.parts, self.views(buffer).values(), strict=True):
            array = arrays[part.name]
            if array.shape != part.shape or array.dtype != part.dtype:
                raise ValueError(
                    f"{part.name} must be {part.dtype} {list(part.shape)}, got {array.dtype} {list(array.shape)}"
                )
            np.copyto(view, array)

    def read(self, buffer: np.ndarray) -> dict[str, np.ndarray]:
        """Copies of the arrays by name."""
        return {name: view.copy() for name, view in self.views(buffer).items()}
