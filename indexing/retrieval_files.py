"""Files of a group of ads that FAISS maps: a flat index, or inverted lists, written as streams in bounded memory.

FAISS itself would hold an index in memory to write it. The headers are its own, of an empty index; counts and lists are
filled in here. A reader checks the header and the length of the file before FAISS sees it: FAISS believes what a
header says.

Shapes: N ads of the group, L lists, D width of a head's vector; a row is D + 2 wide, see ``indexing.retrieval``.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

import faiss
import numpy as np

from contracts.errors import ArtifactError

ROWS = 32_768
"""Rows that are read or written at once."""
FLAT, LISTS = b"IxFI", b"IwFl"
_COUNT_AT, _LISTS_AT, _PROBES_AT, _QUANTIZER_AT = 8, 37, 45, 53
_SIZE = np.dtype("<u8")
_EMPTY_LISTS_BYTES = 32
_MAX_LISTS = 1 << 20


class FlatWriter:
    """Streams rows into the file of a flat inner-product index."""

    def __init__(self, path: Path, dim: int) -> None:
        self._dim, self._num_rows = dim, 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close
        self._file.write(_flat_header(dim, 0))

    def append(self, rows: np.ndarray) -> None:
        """Append rows [B, dim]."""
        self._file.write(np.ascontiguousarray(rows, np.float32).data)
        self._num_rows += len(rows)

    def close(self) -> None:
        """Complete the header."""
        self._file.seek(0)
        self._file.write(_flat_header(self._dim, self._num_rows))
        self._file.close()


@dataclass(frozen=True)
class FlatRows:
    """Reads the rows of a flat index in pieces, with no more memory than a piece. May be used by several threads."""

    path: Path
    num_rows: int
    dim: int

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start..stop``, float32 [stop - start, dim]."""
        at = _header_bytes(self.dim) + 4 * self.dim * start
        return np.fromfile(self.path, np.float32, (stop - start) * self.dim, offset=at).reshape(-1, self.dim)

    def starts(self) -> range:
        """Where each piece of ``ROWS`` rows begins."""
        return range(0, self.num_rows, ROWS)

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows, piece after piece."""
        for start in self.starts():
            part = slice(start, min(start + ROWS, self.num_rows))
            yield part, self.read(part.start, part.stop)


def write_lists(path: Path, flat: FlatRows, ids: np.ndarray, lists: np.ndarray, centroids: np.ndarray) -> None:
    """Write the rows of a flat index as inverted lists, each row at its place in the file.

    Args:
        flat: [N, D+2].
        ids: By what a search names each row, int [N].
        lists: The list of each row, int [N].
        centroids: Of the lists, float32 [L, D+2].
    """
    sizes = np.zeros(len(centroids), np.int64)
    for start in flat.starts():
        sizes += np.bincount(lists[start : start + ROWS], minlength=len(sizes))
    begin = _lists_begin(centroids, 1, sizes)
    row_bytes = 4 * flat.dim
    ends = np.cumsum(sizes * (row_bytes + 8)) + len(begin)
    next_row = ends - sizes * (row_bytes + 8)
    next_id = ends - sizes * 8
    with open(path, "wb") as file:
        file.write(begin)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, int(ends[-1]))
        for part, rows in flat.pieces():
            of_part = np.asarray(lists[part])
            order = np.argsort(of_part, kind="stable")
            counts = np.bincount(of_part, minlength=len(sizes))
            _write_piece(file.fileno(), rows[order], ids[part][order].astype("<i8"), counts, next_row, next_id)
            next_row += counts * row_bytes
            next_id += counts * 8


def _write_piece(
    file: int, rows: np.ndarray, ids: np.ndarray, counts: np.ndarray, next_row: np.ndarray, next_id: np.ndarray
) -> None:
    """Write rows that are sorted by list: of list l ``counts[l]``, at ``next_row[l]`` and ``next_id[l]``."""
    stops = np.cumsum(counts)
    for number in np.flatnonzero(counts).tolist():
        mine = slice(int(stops[number] - counts[number]), int(stops[number]))
        os.pwrite(file, rows[mine].data, int(next_row[number]))
        os.pwrite(file, ids[mine].data, int(next_id[number]))


def set_probes(path: Path, num_probes: int) -> None:
    """Say how many lists a search of the file looks into."""
    with open(path, "r+b") as file:
        file.seek(_PROBES_AT)
        file.write(num_probes.to_bytes(_SIZE.itemsize, "little"))


def map_group(path: Path, dim: int) -> faiss.Index:
    """Map the file of a group.

    Raises:
        ArtifactError: Missing, truncated, or of other dimensions.
    """
    try:
        with open(path, "rb") as file:
            kind = file.read(len(FLAT))
            file.seek(0)
            fault = _flat_fault(file, dim) if kind == FLAT else _lists_fault(file, dim)
        if fault is not None:
            raise ArtifactError(f"{path}: not a retrieval group: {fault}")
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise ArtifactError(f"{path}: not a retrieval group: {error}") from error


def _flat_fault(file: BinaryIO, dim: int) -> str | None:
    header = file.read(len(_flat_header(dim, 0)))
    count = int.from_bytes(header[_COUNT_AT : _COUNT_AT + 8], "little")
    if count > np.iinfo(np.int64).max // (4 * dim) or header != _flat_header(dim, count):
        return f"not the header of a flat index of {dim} dimensions"
    return _length_fault(file, len(header) + 4 * dim * count)


def _lists_fault(file: BinaryIO, dim: int) -> str | None:
    start = file.read(_QUANTIZER_AT)
    if len(start) < _QUANTIZER_AT:
        return f"{len(start)} bytes"
    num_lists, num_probes = (int.from_bytes(start[at : at + 8], "little") for at in (_LISTS_AT, _PROBES_AT))
    if not 1 <= num_probes <= num_lists <= _MAX_LISTS:
        return f"{num_probes} of {num_lists} lists are to be searched"
    file.seek(_QUANTIZER_AT + len(_flat_header(dim, 0)))
    centroids = np.fromfile(file, np.float32, num_lists * dim).reshape(-1, dim)
    if len(centroids) != num_lists:
        return f"{len(centroids)} lists of {num_lists}"
    begin = _lists_begin(centroids, num_probes, np.zeros(num_lists, np.int64))
    file.seek(len(begin) - _SIZE.itemsize * num_lists)
    sizes = np.fromfile(file, _SIZE, num_lists)
    if len(sizes) != num_lists or sizes.max() > 1 << 40:
        return "lengths of its lists"
    file.seek(0)
    expected = _lists_begin(centroids, num_probes, sizes.astype(np.int64))
    if file.read(len(expected)) != expected:
        return f"not the header of inverted lists of {dim} dimensions"
    return _length_fault(file, len(expected) + int(sizes.sum()) * (4 * dim + 8))


def _length_fault(file: BinaryIO, expected: int) -> str | None:
    found = os.fstat(file.fileno()).st_size
    return None if found == expected else f"{found} bytes, expected {expected}"


@cache
def _header_bytes(dim: int) -> int:
    return len(_flat_header(dim, 0))


def _flat_header(dim: int, num_rows: int) -> bytes:
    """What stands before the rows: FAISS's own but for the number of rows, and of values as its last field."""
    header = bytearray(faiss.serialize_index(faiss.IndexFlatIP(dim)).tobytes())
    header[_COUNT_AT : _COUNT_AT + 8] = num_rows.to_bytes(8, "little")
    header[-8:] = (num_rows * dim).to_bytes(8, "little")
    return bytes(header)


def _lists_begin(centroids: np.ndarray, num_probes: int, sizes: np.ndarray) -> bytes:
    """What stands before the lists: FAISS's own header, then its ``ArrayInvertedLists`` with the lengths of all."""
    num_lists, dim = centroids.shape
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(np.ascontiguousarray(centroids))
    index = faiss.IndexIVFFlat(quantizer, dim, num_lists, faiss.METRIC_INNER_PRODUCT)
    index.is_trained, index.nprobe = True, num_probes
    empty = bytearray(faiss.serialize_index(index).tobytes())[:-_EMPTY_LISTS_BYTES]
    empty[_COUNT_AT : _COUNT_AT + 8] = int(sizes.sum()).to_bytes(8, "little")
    numbers = np.array([num_lists, 4 * dim], _SIZE).tobytes()
    return b"".join(
        [bytes(empty), b"ilar", numbers, b"full", np.array([num_lists], _SIZE).tobytes(), sizes.astype(_SIZE).tobytes()]
    )
