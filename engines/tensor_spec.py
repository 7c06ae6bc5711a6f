"""What an input or output of a program is: name, type and shape."""

from pathlib import Path

import msgspec
import numpy as np

from contracts.errors import MismatchError


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input or output: its name, type (as torch spells it: ``float32``), and sizes, ``None`` where they vary."""

    name: str
    dtype: str
    shape: list[int | None]

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    def check(self, path: Path, array: np.ndarray) -> None:
        """Refuse an array of another type or shape.

        Raises:
            MismatchError: Naming the file, the input, what it takes and what was given.
        """
        fits = array.ndim == len(self.shape) and all(
            wanted in (None, size) for wanted, size in zip(self.shape, array.shape, strict=True)
        )
        if not fits or array.dtype != self.numpy_dtype:
            wanted = ["any" if size is None else size for size in self.shape]
            raise MismatchError(
                f"{path}: input {self.name} takes {self.dtype} {wanted}, got {array.dtype} {list(array.shape)}"
            )
