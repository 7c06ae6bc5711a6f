"""Embedding tables in int8, a quarter of the memory: one float32 scale a row, symmetric around zero.

``row ~= scale * integers``, with ``scale = max |row| / 127`` and integers in -127..127, so that the error of a value is
at most half of its row's scale and a row of zeros stays zero. Row-wise, since rows that are met often grow long and
would take the resolution of the others. Kept are the tensors ``tables.<name>`` int8 [N, D] and ``tables.<name>.scale``
float32 [N]. Shapes: N rows, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from contracts.errors import MismatchError

SCALE_SUFFIX = ".scale"
LARGEST = 127
CACHE_LINE = 64
"""Bytes."""


@dataclass(frozen=True)
class StoredTable:
    """Rows as they lie in memory: float [N, D], or int8 [N, D] with ``scales`` float32 [N]."""

    values: np.ndarray
    scales: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Embeddings of ``rows``, [*rows.shape, D]; int8 rows are scaled to float32 after they were taken."""
        values = self.values.take(rows, axis=0)
        return values if self.scales is None else values * self.scales.take(rows)[..., None]


def quantise_table(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``table`` [N, D] as int8 [N, D] and its scales, float32 [N].

    Raises:
        ValueError: A value is not finite.

    Example:
        >>> values, scales = quantise_table(np.array([[2.0, -127.0], [0.0, 0.0]], np.float32))
        >>> values.tolist(), scales.tolist()
        ([[2, -127], [0, 0]], [1.0, 0.0])
    """
    largest = np.maximum(table.max(axis=1, initial=0), np.abs(table.min(axis=1, initial=0)))
    if not np.isfinite(largest).all():
        raise ValueError(f"row {int(np.flatnonzero(~np.isfinite(largest))[0])} of the table is not finite")
    scales = (largest / LARGEST).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(np.inf))[:, None]
    return np.rint(np.clip(table / divisors, -LARGEST, LARGEST)).astype(np.int8), scales


def dequantise_table(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The float32 table [N, D] that int8 ``values`` [N, D] and ``scales`` [N] stand for."""
    return values * scales[:, None]


def stored_table(tensors: Mapping[str, np.ndarray], name: str) -> StoredTable:
    """The table ``name`` among ``tensors``, with its scales if it is int8.

    Raises:
        MismatchError: An int8 table comes without float32 scales, one a row.
    """
    values = tensors[name]
    if values.dtype != np.int8:
        return StoredTable(values)
    scales = tensors.get(f"{name}{SCALE_SUFFIX}")
    if scales is None or scales.shape != (len(values),) or scales.dtype != np.float32:
        found = "none" if scales is None else f"{scales.dtype} {list(scales.shape)}"
        raise MismatchError(f"{name} is int8 and needs {name}{SCALE_SUFFIX} float32 [{len(values)}], got {found}")
    return StoredTable(values, scales)


def _aligned(rows: int, dim: int) -> np.ndarray:
    """Room for float32 [rows, dim] that begins with a cache line, so that a row lies in as few of them as it can."""
    room = np.empty(rows * dim + CACHE_LINE // 4, np.float32)
    first = -room.ctypes.data % CACHE_LINE // 4
    return room[first : first + rows * dim].reshape(rows, dim)


def merged(tables: list[StoredTable]) -> StoredTable:
    """Copies of tables of one kind and width, one below the other, with row 0 of each (padding) set to zero."""
    starts = np.cumsum([0, *(len(table) for table in tables[:-1])])
    if tables[0].scales is None:
        tables_values = [np.asarray(table.values, np.float32) for table in tables]
        values = _aligned(sum(map(len, tables_values)), tables_values[0].shape[1])
        np.concatenate(tables_values, out=values)
        values[starts] = 0
        return StoredTable(values)
    scales = np.concatenate([table.scales for table in tables if table.scales is not None])
    scales[starts] = 0
    return StoredTable(np.concatenate([table.values for table in tables]), scales)
