"""From string ids to rows: an open-addressing hash table in memory-mapped files, shared by processes.

An id is looked up by hash, then compared in full with the stored one: an unknown id never maps to a neighbour. Ids may
be of any length and alphabet, the empty string and NUL included. A batch of any size takes few NumPy calls, and an id
of at most 16 bytes three reads from memory: the tags of its bucket, the row in the slot whose tag is its own, and that
row's head, which is the id itself. A longer id is compared in ``ids.bin`` as well.

Files of a table of A ids: ``ids.bin`` (all ids as UTF-8), ``offsets.npy`` [A+1] int64, ``heads.npy`` [A, 2] uint64,
``tags.npy`` and ``rows.npy`` [buckets, 16] uint16 and int32. The tags of a bucket are half a cache line, 16 bits of
each id's hash (0: empty slot); an id that finds its bucket full goes to the next one, and the last bucket is never
full. This takes 39 bytes an id beside the ids themselves. ``indexing.id_buckets`` writes the buckets.

Shapes: K ids looked up, P of them still looked for, M possible matches.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts import compiled
from contracts.errors import ArtifactError, LogError
from indexing.arrays import HEADER_BYTES, ArrayWriter, map_array, open_appending, release_pages
from indexing.id_buckets import SLOTS, num_home_buckets, places, write_buckets
from indexing.id_keys import HEAD, SHORT, Keys, array_bytes, equal_texts, stored_keys, text_keys

_BATCH = 65_536
_OFFSET_BYTES = 8
_ARRAYS = ("offsets", "heads", "tags", "rows")


class IdTable:
    """A table of distinct ids; the row of an id is the position at which it was written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     table = IdTable.build(["ad-1", "ad-ü", ""], Path(directory) / "ids")
        ...     table.lookup(["ad-ü", "ad-2", ""]).tolist()
        [1, -1, 2]
    """

    def __init__(
        self, data: np.ndarray, offsets: np.ndarray, heads: np.ndarray, tags: np.ndarray, rows: np.ndarray
    ) -> None:
        self._data, self._offsets, self._heads = np.asarray(data), np.asarray(offsets), np.asarray(heads)
        self._tags, self._rows = np.asarray(tags), np.asarray(rows).reshape(-1)
        self._num_home_buckets = num_home_buckets(len(self))
        words = self._tags.view(np.uint64)  # four tags each
        self._stored = words, self._rows, self._heads, self._offsets, self._data

    @classmethod
    def build(cls, ids: Sequence[str], directory: Path, *, source: str = "ids") -> "IdTable":
        """Write a table of ``ids`` into ``directory`` and open it."""
        writer = IdTableWriter(directory)
        for start in range(0, len(ids), _BATCH):
            writer.append(pa.array(ids[start : start + _BATCH], pa.string()))
        writer.finish(source=source)
        return cls.open(directory)

    @classmethod
    def open(cls, directory: Path) -> "IdTable":
        """Map the files of a table.

        Raises:
            ArtifactError: A file is missing or does not fit the others.
        """
        try:
            data = np.memmap(directory / "ids.bin", np.uint8, "r")
            offsets, heads, tags, rows = (map_array(directory / f"{name}.npy") for name in _ARRAYS)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{directory}: not an id table: {error}") from error
        fits = len(offsets) == len(heads) + 1 and tags.shape == rows.shape and len(data) == offsets[-1] + SHORT
        if not fits or len(tags) < num_home_buckets(len(heads)) or tags[-1, -1]:
            raise ArtifactError(f"{directory}: the files of the id table do not fit together")
        return cls(data, offsets, heads, tags, rows)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def lookup(self, ids: Sequence[str]) -> np.ndarray:
        """Return the row of each id, int32 [K]; -1 where it is unknown."""
        return self.lookup_keys(text_keys(ids))

    def lookup_keys(self, keys: Keys) -> np.ndarray:
        """Return the row of each key, int32 [K]; -1 where it is unknown. Several tables may be asked the same keys."""
        if (kernels := compiled.kernels()) is not None:
            found = np.empty(len(keys), np.int32)
            asked = keys.hashes, keys.heads, keys.starts, keys.lengths, keys.data
            kernels.find_rows(*asked, self._num_home_buckets, *self._stored, found)
            return found
        found = np.full(len(keys), -1, np.int32)
        tags, buckets = places(keys.hashes, self._num_home_buckets)
        pending: np.ndarray | None = None  # all
        while len(buckets):
            slots = self._tags.take(buckets, axis=0)  # [P, 16]
            matches = np.flatnonzero(slots == tags[:, None])
            asking = matches // SLOTS
            rows = self._rows.take(buckets.take(asking) * SLOTS + matches % SLOTS)
            positions = asking if pending is None else pending.take(asking)
            equal = np.flatnonzero(self._equal(keys, positions, rows))
            found[positions.take(equal)] = rows.take(equal)
            going_on = np.flatnonzero((found if pending is None else found.take(pending)) < 0)
            going_on = going_on[slots[going_on, -1] != 0]
            tags, buckets = tags.take(going_on), buckets.take(going_on) + 1
            pending = going_on if pending is None else pending.take(going_on)
        return found

    def ids(self, rows: np.ndarray) -> list[str]:
        """Return the ids of rows [K].

        Raises:
            IndexError: A row is not in ``0..len - 1``.
        """
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows must be in 0..{len(self) - 1}, got {rows.min()}..{rows.max()}")
        starts, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        return [self._data[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True)]

    def texts(self, start: int, stop: int) -> pa.StringArray:
        """Return the ids of consecutive rows; the text is not copied."""
        offsets = self._offsets[start : stop + 1]
        within = pa.py_buffer((offsets - offsets[0]).astype(np.int32))
        return pa.StringArray.from_buffers(len(offsets) - 1, within, pa.py_buffer(self._data[offsets[0] : offsets[-1]]))

    def release_pages(self) -> None:
        """Give back the memory of what was read of the texts."""
        release_pages(self._data, self._offsets)

    def _equal(self, keys: Keys, positions: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Compare ids with stored ones in full, bool [M]."""
        stored, asked = self._heads.take(rows, axis=0), keys.heads.take(positions, axis=0)
        equal = (stored[:, 0] == asked[:, 0]) & (stored[:, 1] == asked[:, 1])
        if keys.has_long:
            long = np.flatnonzero(equal & (keys.lengths.take(positions) > HEAD))
            equal[long] = self._equal_long(keys.take(positions[long]), rows[long])
        return equal

    def _equal_long(self, keys: Keys, rows: np.ndarray) -> np.ndarray:
        starts = self._offsets.take(rows)
        equal = self._offsets.take(rows + 1) - starts == keys.lengths
        alike = np.flatnonzero(equal)
        equal[alike] = equal_texts(keys.take(alike), self._data, starts[alike])
        return equal


class IdTableWriter:
    """Writes a table in batches; memory does not grow with the ids.

    Args:
        directory: Directory to create, or to go on in.
        resume_rows: Ids to keep of an interrupted writer that had brought them to disk; 0 begins anew.

    Raises:
        ArtifactError: The files hold fewer ids than are to be kept.
    """

    def __init__(self, directory: Path, *, resume_rows: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._offsets = ArrayWriter(
            directory / "offsets.npy", np.int64, resume_rows=resume_rows + 1 if resume_rows else 0
        )
        if not resume_rows:
            self._offsets.append(np.zeros(1, np.int64))
        self._end = _offset_at(directory / "offsets.npy", resume_rows) if resume_rows else 0
        self._file = open_appending(directory / "ids.bin", self._end)

    def append(self, ids: pa.StringArray) -> None:
        """Append ids; there are no nulls."""
        data, lengths = array_bytes(ids)
        self._file.write(data.data)
        self._offsets.append(self._end + np.cumsum(lengths))
        self._end += len(data)

    def sync(self) -> None:
        """Bring the ids to disk, so that a later writer can go on after them."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._offsets.sync()

    def finish(self, *, source: str = "ids") -> None:
        """Write the hash table.

        Raises:
            LogError: An id came twice; the message names the source and such ids.
        """
        self._file.write(b"\0" * SHORT)
        self._file.close()
        self._offsets.close()
        with ArrayWriter(self._directory / "heads.npy", np.uint64, (HEAD // 8,)) as heads:
            repeated = write_buckets(self._directory, self._hashes(heads), self._offsets.num_rows - 1)
        if len(repeated):
            table = IdTable.open(self._directory)
            same = [ad_id for ad_id, count in Counter(table.ids(repeated)).items() if count > 1]
            if same:
                raise LogError(f"{source}: ids must differ, these came twice: {same[:5]}")

    def _hashes(self, heads: ArrayWriter) -> Iterator[np.ndarray]:
        """The hashes of all ids, batch by batch; their heads are written on the way."""
        num_ids = self._offsets.num_rows - 1
        with open(self._directory / "ids.bin", "rb") as file:
            for start in range(0, num_ids, _BATCH):
                count = min(_BATCH, num_ids - start) + 1
                offsets = np.fromfile(
                    self._directory / "offsets.npy", np.int64, count, offset=HEADER_BYTES + start * _OFFSET_BYTES
                )
                data = np.frombuffer(file.read(int(offsets[-1] - offsets[0])) + b"\0" * SHORT, np.uint8)
                keys = stored_keys(data, offsets[:-1] - offsets[0], np.diff(offsets))
                heads.append(keys.heads)
                yield keys.hashes


def _offset_at(path: Path, row: int) -> int:
    """One value of an array whose header may be unfinished."""
    return int(np.fromfile(path, np.int64, 1, offset=HEADER_BYTES + row * _OFFSET_BYTES)[0])
