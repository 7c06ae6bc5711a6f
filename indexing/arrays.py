"""Arrays that grow on disk: rows are appended to a .npy file whose header is completed at the end."""

import mmap
import os
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import numpy as np

from contracts.errors import ArtifactError

HEADER_BYTES = 128
_MAGIC = b"\x93NUMPY\x01\x00"


class ArrayWriter:
    """Appends rows to a .npy file, so that memory stays small whatever the number of rows.

    A writer that was interrupted goes on: what follows the last row that is known to be on disk is cut off.

    Source: the .npy format, version 1.0, with a header of fixed size.

    Args:
        path: File to create, or to go on with.
        dtype: Type of a value.
        row_shape: Shape of one row; () for a column of scalars.
        resume_rows: Rows of the file to keep; 0 begins anew.

    Raises:
        ArtifactError: The file holds fewer rows than are to be kept.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     with ArrayWriter(Path(directory) / "x.npy", np.float32, (2,)) as writer:
        ...         writer.append(np.ones((3, 2)))
        ...     np.load(Path(directory) / "x.npy").shape
        (3, 2)
    """

    def __init__(
        self, path: Path, dtype: np.typing.DTypeLike, row_shape: tuple[int, ...] = (), *, resume_rows: int = 0
    ) -> None:
        self._dtype, self._row_shape, self.num_rows = np.dtype(dtype), row_shape, resume_rows
        row_bytes = self._dtype.itemsize * int(np.prod(row_shape))
        self._file = open_appending(path, HEADER_BYTES + resume_rows * row_bytes if resume_rows else 0)
        if not resume_rows:
            self._file.write(self._header())

    def append(self, rows: np.ndarray) -> None:
        """Append rows [B, *row_shape], cast to the file's type.

        Raises:
            ValueError: The shape of a row is another one.
        """
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {self._row_shape} are expected, got {rows.shape[1:]}")
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self.num_rows += len(rows)

    def sync(self) -> None:
        """Bring the rows to disk, so that a later writer can go on after them."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Complete the header and close the file."""
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _header(self) -> bytes:
        shape = (self.num_rows, *self._row_shape)
        text = repr({"descr": self._dtype.str, "fortran_order": False, "shape": shape})
        length = HEADER_BYTES - len(_MAGIC) - 2
        return _MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def open_appending(path: Path, keep_bytes: int) -> BinaryIO:
    """Open a file to append to it after its first ``keep_bytes``; 0 begins anew.

    Raises:
        ArtifactError: It holds fewer bytes.
    """
    if not keep_bytes:
        return open(path, "wb")
    found = path.stat().st_size if path.exists() else 0
    if found < keep_bytes:
        raise ArtifactError(f"{path}: {found} bytes, expected at least {keep_bytes} to go on after")
    file = open(path, "r+b")  # noqa: SIM115 - closed by its owner
    file.truncate(keep_bytes)
    file.seek(keep_bytes)
    return file


def create_mapped(path: Path, dtype: np.typing.DTypeLike, shape: tuple[int, ...]) -> np.memmap:
    """Create a .npy file of zeros and map it for writing.

    Its space is taken first: writing to a mapped file on a full disk ends the process (SIGBUS).

    Raises:
        OSError: The disk has no room for it.
    """
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, max(path.stat().st_size, 1))
    return array


def map_array(path: Path) -> np.ndarray:
    """Map a .npy file, read-only, as a plain array (``np.memmap`` costs microseconds at each access).

    An empty array is read, since nothing can be mapped.

    Raises:
        OSError: It cannot be read.
        ValueError: It is damaged.
    """
    try:
        return np.asarray(
            np.load(path, mmap_mode="r" if path.stat().st_size > HEADER_BYTES else None, allow_pickle=False)
        )
    except (EOFError, SyntaxError, TokenError) as error:  # of a header that NumPy tries to make sense of
        raise ValueError(f"damaged header: {error}") from error


def release_pages(*arrays: np.ndarray | None) -> None:
    """Give back the memory of what was read from mapped arrays, which stay readable.

    A job that reads a large file once would otherwise seem to hold all of it.
    """
    for array in arrays:
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)


def joined_rows(first: np.ndarray, second: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of two arrays of one kind, as if the second followed the first.

    Example:
        >>> joined_rows(np.array([1, 2]), np.array([3]), np.array([2, 0, 1])).tolist()
        [3, 1, 2]
    """
    of_second = rows >= len(first)
    gathered = first[np.where(of_second, 0, rows)]
    gathered[of_second] = second[rows[of_second] - len(first)]
    return gathered
