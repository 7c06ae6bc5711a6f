"""The files of an overlay: what updates change of an index on one host, mapped by its processes.

    current                                        name of the directory of the files below; replaced by one rename
    header.bin                                     written last, see ``indexing.overlay_header``
    servable, withdrawn, taken_down, has_bid, bids, objectives, newest
                                                   of all rows: A of the index, then the overlay's [A + capacity]
    stale, rebid                                   of the index's rows [A]
    vectors, bias, scales, heavy-ids, heavy-floats, seq, valid_from, is_here, is_gone, text-ends     of its own rows
    text.bin                                       id and advertiser of its own rows, one after the other

One process writes, others map the same pages and see each change at once. Rows are only appended; a value of a few
bytes is replaced in one store. Files have their full size from the start, but blocks are taken from the disk only as
rows come, so that a full disk is an error of the writer and never a fault in a reader's memory.

Shapes: A ads of the index, H heads, D width of a head's vector.
"""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from contracts.errors import AdsieveError
from contracts.records import STATUSES
from contracts.release import UpdatePosition
from indexing.index import Index
from indexing.overlay_header import HEADER, MAGIC

ACTIVE = STATUSES.index("active")

NEWEST, GONE = 0, -1
"""In ``newest``: the row itself is the newest of its ad; the ad is in no row any more. Else the newest row plus 1."""

MAY_BE_SHOWN, BY_TAKEDOWN, BY_BUDGET = 0, 1, 2
WITHDRAWN = ("", "takedown", "budget")
"""What withdrew an ad, whatever its status; both at once count as a takedown."""

CURRENT, TEXT_FILE = "current", "text.bin"
_HEADER_FILE = "header.bin"
_ALL_ROWS = {
    "servable": np.bool_,
    "withdrawn": np.bool_,
    "taken_down": np.bool_,
    "has_bid": np.bool_,
    "bids": np.float32,
    "objectives": np.int8,
    "newest": np.int32,
}
_INDEX_ROWS = {"stale": np.bool_, "rebid": np.int32}


@dataclass(frozen=True)
class OverlayArrays:
    """The mapped files of one overlay; writable in its writer only.

    Args:
        text: The file of texts, open: it can be read when the directory has been removed.
        header: One record of ``HEADER``.
        servable, withdrawn, taken_down, has_bid, bids, objectives, newest: [A + capacity]; ``newest`` as of ``NEWEST``.
        stale: bool [A], rows that a search of the index must not find: there is a newer one, or the bid is another.
        rebid: int32 [A]: the first ``num_rebid`` are rows of the index whose bid changed.
        rows: Arrays of the overlay's own rows [capacity, ...], by name. ``is_gone`` marks one that only tells that the
            ad moved to another scenario, ``is_here`` one that a search may find.
    """

    directory: Path
    text: BinaryIO
    header: np.ndarray
    servable: np.ndarray
    withdrawn: np.ndarray
    taken_down: np.ndarray
    has_bid: np.ndarray
    bids: np.ndarray
    objectives: np.ndarray
    newest: np.ndarray
    stale: np.ndarray
    rebid: np.ndarray
    rows: dict[str, np.ndarray] = field(repr=False)

    @property
    def capacity(self) -> int:
        return int(self.header["capacity"][0])

    @property
    def num_rows(self) -> int:
        return int(self.header["num_rows"][0])

    @property
    def position(self) -> UpdatePosition | None:
        """The last update in effect; None before there is a log."""
        header = self.header[0]
        return UpdatePosition(log=header["log"].decode(), seq=int(header["seq"])) if header["log"] else None

    def why_withdrawn(self, rows: np.ndarray) -> np.ndarray:
        """What withdrew the ads of rows [K], a place in ``WITHDRAWN``, int8."""
        why = np.where(self.taken_down[rows], BY_TAKEDOWN, BY_BUDGET)
        return np.where(self.withdrawn[rows], why, MAY_BE_SHOWN).astype(np.int8)

    def advance(self, log: str, seq: int) -> None:
        """Tell readers that all updates up to ``seq`` are in effect."""
        if self.header["log"][0] != log.encode():
            self.header["log"][0] = log.encode()
        if self.header["seq"][0] != seq:
            self.header["seq"][0], self.header["applied_at"][0] = seq, time.time()

    @property
    def num_rebid(self) -> int:
        return int(self.header["num_rebid"][0])

    def texts(self, start: int, stop: int) -> list[tuple[str, str | None]]:
        """Id and advertiser of the overlay's rows ``start..stop``."""
        if start == stop:
            return []
        ends = self.rows["text-ends"][:stop]
        begin = int(ends[start - 1, 1]) if start else 0
        data = os.pread(self.text.fileno(), int(ends[stop - 1, 1]) - begin, begin)
        found, at = [], 0
        for id_end, advertiser_end in (ends[start:stop] - begin).tolist():
            advertiser = data[id_end:advertiser_end]  # begins with a sign, which tells an empty name from none
            found.append((data[at:id_end].decode(), advertiser[1:].decode() if advertiser else None))
            at = advertiser_end
        return found


def row_shapes(index: Index) -> dict[str, tuple[type | np.dtype, tuple[int, ...]]]:
    """Type and shape of one row of each array of overlay rows, for an index."""
    shapes: dict[str, tuple[type | np.dtype, tuple[int, ...]]] = {
        "vectors": (index.vectors.dtype, index.vectors.shape[1:]),
        "bias": (np.float32, index.bias.shape[1:]),
        "seq": (np.int64, ()),
        "valid_from": (np.int64, ()),
        "is_here": (np.bool_, ()),
        "is_gone": (np.bool_, ()),
        "text-ends": (np.int64, (2,)),
    }
    if index.scales is not None:
        shapes["scales"] = (np.float32, index.scales.shape[1:])
    if index.heavy_ads is not None:
        shapes["heavy-ids"] = (np.int32, index.heavy_ads.ids.shape[1:])
        shapes["heavy-floats"] = (np.float32, index.heavy_ads.floats.shape[1:])
    return shapes


def create_overlay(directory: Path, index: Index, *, capacity: int) -> OverlayArrays:
    """Write an overlay without updates into an empty directory, and map it for writing.

    Args:
        capacity: Most rows that it can take.

    Raises:
        AdsieveError: The disk is full.
    """
    for columns, num_rows in ((_ALL_ROWS, len(index) + capacity), (_INDEX_ROWS, len(index))):
        for name, column in columns.items():
            _create(directory / f"{name}.bin", np.dtype(column).itemsize * num_rows, allocate=True)
    for name, (dtype, shape) in row_shapes(index).items():
        _create(directory / f"{name}.bin", _row_bytes(dtype, shape) * capacity, allocate=False)
    (directory / TEXT_FILE).touch()
    _create(directory / _HEADER_FILE, HEADER.itemsize, allocate=True)
    arrays = _map(directory, index, capacity, mode="r+")
    arrays.bids[: len(index)] = index.bids
    arrays.bids[len(index) :] = np.nan
    arrays.objectives[: len(index)] = index.objectives
    arrays.has_bid[: len(index)] = ~np.isnan(index.bids)
    arrays.servable[: len(index)] = np.asarray(index.status) == ACTIVE
    header = arrays.header[0]
    header["boot"], header["index"] = boot_id(), index.manifest.version.encode()
    header["capacity"] = capacity
    header["magic"] = MAGIC
    return arrays


def map_overlay(directory: Path, index: Index, *, writable: bool = False) -> OverlayArrays | None:
    """Map the current overlay of ``directory``; None where none is whole, of this index, and of this start."""
    try:
        directory = directory / (directory / CURRENT).read_text()
        header = np.fromfile(directory / _HEADER_FILE, HEADER)
        if len(header) != 1 or not _is_sound(header[0], index):
            return None
        return _map(directory, index, int(header["capacity"][0]), mode="r+" if writable else "r")
    except (OSError, ValueError):
        return None


def reserve_rows(arrays: OverlayArrays, index: Index, start: int, stop: int) -> None:
    """Take disk blocks for the overlay's rows ``start..stop``, so that writing to the mapped pages cannot fail.

    Raises:
        AdsieveError: The disk is full; nothing was changed that a reader sees.
    """
    for name, (dtype, shape) in row_shapes(index).items():
        size = _row_bytes(dtype, shape)
        _allocate(arrays.directory / f"{name}.bin", size * start, size * (stop - start))


def append_texts(arrays: OverlayArrays, texts: Sequence[tuple[str, str | None]]) -> None:
    """Write id and advertiser of the rows that come next; no reader sees them before ``num_rows`` grows.

    Raises:
        AdsieveError: The disk is full.
    """
    first = arrays.num_rows
    begin = int(arrays.rows["text-ends"][first - 1, 1]) if first else 0
    parts = [(ad_id.encode(), b"" if name is None else b"=" + name.encode()) for ad_id, name in texts]
    ends = begin + np.cumsum([[len(part) for part in pair] for pair in parts]).reshape(-1, 2)
    path = arrays.directory / TEXT_FILE
    try:
        with open(path, "r+b") as file:
            file.seek(begin)
            file.write(b"".join(part for pair in parts for part in pair))
    except OSError as error:
        raise AdsieveError(f"{path}: cannot be written: {error.strerror}") from error
    arrays.rows["text-ends"][first : first + len(texts)] = ends


def boot_id() -> bytes:
    """What differs between two starts of the host; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


def _is_sound(header: np.void, index: Index) -> bool:
    is_ours = header["index"].decode(errors="replace") == index.manifest.version
    return bool(header["magic"] == MAGIC and header["boot"] == boot_id() and is_ours and not header["retired"])


def _map(directory: Path, index: Index, capacity: int, *, mode: Literal["r", "r+"]) -> OverlayArrays:
    def array(name: str, dtype: np.typing.DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
        path, size = directory / f"{name}.bin", _row_bytes(dtype, shape)
        if path.stat().st_size != size:  # a map for writing would make it longer
            raise ValueError(f"{path}: {path.stat().st_size} bytes, expected {size}")
        return np.asarray(np.memmap(path, dtype, mode, shape=shape)) if size else np.zeros(shape, dtype)

    return OverlayArrays(
        directory=directory,
        text=open(directory / TEXT_FILE, "rb", buffering=0),
        header=array("header", HEADER, (1,)),
        **{name: array(name, dtype, (len(index) + capacity,)) for name, dtype in _ALL_ROWS.items()},
        **{name: array(name, dtype, (len(index),)) for name, dtype in _INDEX_ROWS.items()},
        rows={name: array(name, dtype, (capacity, *shape)) for name, (dtype, shape) in row_shapes(index).items()},
    )


def _row_bytes(dtype: np.typing.DTypeLike, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * math.prod(shape)


def _create(path: Path, size: int, *, allocate: bool) -> None:
    with open(path, "xb") as file:
        file.truncate(size)
    if allocate:
        _allocate(path, 0, size)


def _allocate(path: Path, start: int, size: int) -> None:
    if size <= 0:
        return
    handle = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(handle, start, size)
    except OSError as error:
        raise AdsieveError(f"{path}: no room for {size} bytes of the overlay: {error.strerror}") from error
    finally:
        os.close(handle)
