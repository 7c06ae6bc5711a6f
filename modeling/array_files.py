"""Arrays of unknown length written to disk piece by piece, and read back memory-mapped."""

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import pyarrow as pa


class ArrayWriter:
    """Writes ``<name>.npy`` files that grow by whole pieces; their headers get the final length at the end.

    The first piece of a name decides the type and the shape of its rows; a later piece is converted to that type.

    Args:
        directory: Takes the files.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> with ArrayWriter(directory) as writer:
        ...     writer.append("a", np.array([1, 2], np.int8))
        ...     writer.append("a", np.array([3]))
        >>> read_array(directory, "a").tolist()
        [1, 2, 3]
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, BinaryIO] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def append(self, name: str, rows: np.ndarray) -> None:
        """Add rows, [n] or [n, ...]."""
        if name not in self._files:
            self._files[name] = open(self._directory / f"{name}.npy", "wb")  # noqa: SIM115 - closed on exit
            self._shapes[name], self._dtypes[name] = (0, *rows.shape[1:]), rows.dtype
            self._write_header(name)
        np.ascontiguousarray(rows, self._dtypes[name]).tofile(self._files[name])
        self._shapes[name] = (self._shapes[name][0] + len(rows), *self._shapes[name][1:])

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, file in self._files.items():
            file.seek(0)
            self._write_header(name)
            file.close()

    def _write_header(self, name: str) -> None:
        """NumPy pads the header so that its size does not depend on the length."""
        descr = np.lib.format.dtype_to_descr(self._dtypes[name])
        header = {"descr": descr, "fortran_order": False, "shape": self._shapes[name]}
        np.lib.format.write_array_header_1_0(self._files[name], header)


def read_array(directory: Path, name: str) -> np.ndarray:
    """Map ``<name>.npy`` read-only."""
    return np.load(directory / f"{name}.npy", mmap_mode="r")


def write_texts(directory: Path, name: str, texts: pa.Array) -> None:
    """Write one text column as ``<name>.arrow``."""
    table = pa.table({name: texts.cast(pa.large_string())})
    with pa.OSFile(str(directory / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read_texts(directory: Path, name: str) -> pa.Array:
    """Map what ``write_texts`` wrote."""
    column = pa.ipc.open_file(pa.memory_map(str(directory / f"{name}.arrow"))).read_all()[name]
    return column.combine_chunks()
