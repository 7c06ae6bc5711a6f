"""Places ids in the buckets of an id table, a part of the hash range at a time, so that memory stays small.

A bucket has 16 slots, filled from the first on. Ids are placed in the order of their hashes, which is that of their
home buckets: each takes the first slot that is free from its home bucket's first one on, so the slot of sorted id i is

    slot(i) = max(16 home(i), slot(i - 1) + 1) = i + max over j <= i of (16 home(j) - j)

Shapes: K ids of a batch or part.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from indexing.arrays import ArrayWriter

SLOTS = 16
_LOAD = 0.4
IDS_PER_PART, MAX_PARTS = 250_000, 256
"""Parts are larger where there would be more of them: each is a file that is open for a while."""

PARTS = ".parts"
"""Directory of these files, beside the table's."""

_HALF = np.uint64(32)
_ENTRY = np.dtype([("hash", np.uint64), ("row", np.int32)])


def num_home_buckets(num_ids: int) -> int:
    """Buckets that a hash may lead to; a few more may follow."""
    return max(1, int(np.ceil(num_ids / (SLOTS * _LOAD))))


def places(hash_values: np.ndarray, num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tag (uint16, not 0) and the home bucket (int64) of each hash [K], from its low and its high half."""
    tags = np.maximum(hash_values.astype(np.uint16), np.uint16(1))
    buckets = hash_values >> _HALF
    buckets *= np.uint64(num_buckets)
    buckets >>= _HALF
    return tags, buckets.view(np.int64)


def write_buckets(directory: Path, hashes: Iterable[np.ndarray], num_ids: int) -> np.ndarray:
    """Write ``tags.npy`` and ``rows.npy``; rows are numbered as the hashes come.

    Args:
        directory: Of the table.
        hashes: Of all ids, batch by batch.
        num_ids: How many they are.

    Returns:
        Rows whose hash another row has too, int64: their ids may be equal.
    """
    num_buckets, repeated = num_home_buckets(num_ids), []
    num_parts = min(MAX_PARTS, -(-num_ids // IDS_PER_PART) or 1)
    ends = [num_buckets * (part + 1) // num_parts for part in range(num_parts)]
    with (
        _scratch(directory / PARTS) as scratch,
        ArrayWriter(directory / "tags.npy", np.uint16, (SLOTS,)) as tags,
        ArrayWriter(directory / "rows.npy", np.int32, (SLOTS,)) as rows,
    ):
        window = _Window(tags, rows)
        for end, entries in zip(ends, _parts(scratch, hashes, num_buckets, ends), strict=True):
            entries = entries[np.argsort(entries["hash"])]
            repeated.append(_repeated(entries))
            window.add(*places(entries["hash"], num_buckets), entries["row"])
            window.write(end)
        window.write_rest()
    return np.concatenate(repeated)


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """A directory of this name, without what a killed process left in it; it is removed at the end."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _parts(scratch: Path, hashes: Iterable[np.ndarray], num_buckets: int, ends: list[int]) -> Iterator[np.ndarray]:
    """Hashes and rows by part of the buckets, each part whole."""
    paths, start = [scratch / str(part) for part in range(len(ends))], 0
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in paths]
        for batch in hashes:
            entries = np.empty(len(batch), _ENTRY)
            entries["hash"], entries["row"] = batch, np.arange(start, start + len(batch))
            start += len(batch)
            if len(ends) > 1:
                entries = entries[np.argsort(batch)]
            cuts = np.searchsorted(places(entries["hash"], num_buckets)[1], ends[:-1])
            for file, part in zip(files, np.split(entries, cuts), strict=True):
                file.write(part.tobytes())
    for path in paths:
        yield np.fromfile(path, _ENTRY)
        path.unlink()


def _repeated(entries: np.ndarray) -> np.ndarray:
    """Rows of sorted entries whose hash is that of a neighbour."""
    same = np.flatnonzero(entries["hash"][1:] == entries["hash"][:-1])
    return entries["row"][np.union1d(same, same + 1)].astype(np.int64)


class _Window:
    """The buckets from the first that is not written yet on, and what is to be placed in them."""

    def __init__(self, tags: ArrayWriter, rows: ArrayWriter) -> None:
        self._write_tags, self._write_rows = tags.append, rows.append
        self._slots, self._tags, self._rows = np.zeros(0, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.int32)
        self._next_slot = self._first = 0

    def add(self, tags: np.ndarray, buckets: np.ndarray, rows: np.ndarray) -> None:
        """Place ids behind all that were added before; home buckets ascend."""
        order = np.arange(len(buckets))
        slots = order + np.maximum.accumulate(np.maximum(SLOTS * buckets, self._next_slot) - order)
        self._next_slot = int(slots[-1]) + 1 if len(slots) else self._next_slot
        self._slots = np.concatenate([self._slots, slots])
        self._tags, self._rows = np.concatenate([self._tags, tags]), np.concatenate([self._rows, rows])

    def write(self, end: int) -> None:
        """Write the buckets before ``end``; what was placed behind it waits."""
        count = int(np.searchsorted(self._slots, SLOTS * end))
        self._write_tags(self._filled(self._tags[:count], end))
        self._write_rows(self._filled(self._rows[:count], end))
        self._slots, self._tags, self._rows = self._slots[count:], self._tags[count:], self._rows[count:]
        self._first = end

    def write_rest(self) -> None:
        """Write as many buckets more as it takes for the last one not to be full."""
        self.write(max(self._first, self._next_slot // SLOTS + 1))

    def _filled(self, values: np.ndarray, end: int) -> np.ndarray:
        filled = np.zeros((end - self._first) * SLOTS, values.dtype)
        filled[self._slots[: len(values)] - SLOTS * self._first] = values
        return filled.reshape(-1, SLOTS)
