"""What an input or output of a graph is: name, type and shape, with names for the sizes that vary."""

from pathlib import Path

import msgspec
import numpy as np

from contracts.errors import MismatchError


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input or output: its name, type (such as ``float32``), and sizes; those that vary have a name.

    Example:
        >>> TensorSpec(name="ads", dtype="float32", shape=["requests", "ads", 8]).axes
        {0: 'requests', 1: 'ads'}
    """

    name: str
    dtype: str
    shape: list[int | str]

    @property
    def axes(self) -> dict[int, str]:
        """Axes that vary and the name of each."""
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)}

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    def check(self, path: Path, array: np.ndarray) -> None:
        """Refuse an array of another type or shape.

        Raises:
            MismatchError: Naming the file, the input, what it takes and what was given.
        """
        fits = array.ndim == len(self.shape) and all(
            isinstance(wanted, str) or wanted == size for wanted, size in zip(self.shape, array.shape, strict=True)
        )
        if not fits or array.dtype != self.numpy_dtype:
            raise MismatchError(
                f"{path}: input {self.name} takes {self.dtype} {self.shape}, got {array.dtype} {list(array.shape)}"
            )
