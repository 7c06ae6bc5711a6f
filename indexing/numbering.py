"""Numbers texts in the order of their first appearance, such as advertisers; most of them on disk, however many."""

import shutil
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexing.arrays import HEADER_BYTES
from indexing.id_table import IdTable, IdTableWriter

RECENT = 200_000
"""Texts that are kept in memory; when so many are new, they become a table on disk."""


class Numbering:
    """Numbers texts from 0; the number of a text is its row in the id table that :meth:`finish` completes.

    Args:
        directory: Of that table; created.
        scratch: Directory for tables of earlier texts; created anew, and removed by the caller in the end.
        resume_rows: Texts that an interrupted numbering had brought to disk; they keep their numbers.
    """

    def __init__(self, directory: Path, scratch: Path, *, resume_rows: int = 0) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        self._scratch = scratch
        self._earlier: list[tuple[int, IdTable]] = []
        self._recent: dict[str, int] = {}
        self.num_texts = 0
        self._table = IdTableWriter(directory, resume_rows=resume_rows)
        for start in range(0, resume_rows, RECENT):
            self._remember(_texts(directory, start, min(start + RECENT, resume_rows)))

    def __call__(self, texts: pa.StringArray) -> np.ndarray:
        """Return the number of each text, int32 [B]; -1 where it is missing."""
        encoded = texts.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        numbers = np.fromiter(map(self._recent.get, distinct, repeat(-1)), np.int32, len(distinct))
        unknown = np.flatnonzero(numbers < 0)
        numbers[unknown] = self._among_earlier([distinct[place] for place in unknown])
        new = unknown[numbers[unknown] < 0]
        if len(new):
            numbers[new] = np.arange(self.num_texts, self.num_texts + len(new))
            added = [distinct[place] for place in new]
            self._table.append(pa.array(added, pa.string()))
            self._remember(added)
        return np.append(numbers, np.int32(-1))[np.asarray(encoded.indices.fill_null(-1))]

    def sync(self) -> None:
        """Bring the texts to disk, so that a later numbering can go on after them."""
        self._table.sync()

    def finish(self) -> None:
        """Complete the id table."""
        self._table.finish()

    def _remember(self, texts: list[str]) -> None:
        for text in texts:
            self._recent[text] = self.num_texts
            self.num_texts += 1
        if len(self._recent) >= RECENT:
            first = self.num_texts - len(self._recent)
            self._earlier.append((first, IdTable.build(list(self._recent), self._scratch / f"from-{first}")))
            self._recent = {}

    def _among_earlier(self, texts: list[str]) -> np.ndarray:
        found = np.full(len(texts), -1, np.int64)
        for first, table in self._earlier:
            pending = np.flatnonzero(found < 0)
            if not len(pending):
                break
            rows = table.lookup([texts[place] for place in pending])
            found[pending] = np.where(rows >= 0, first + rows, -1)
        return found


def _texts(directory: Path, start: int, stop: int) -> list[str]:
    """Texts of an id table that is being written."""
    size = np.dtype(np.int64).itemsize
    ends = np.fromfile(directory / "offsets.npy", np.int64, stop - start + 1, offset=HEADER_BYTES + start * size)
    data = np.fromfile(directory / "ids.bin", np.uint8, int(ends[-1] - ends[0]), offset=int(ends[0])).tobytes()
    ends -= ends[0]
    return [data[begin:end].decode() for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
