"""Brings the candidates of each request together where a file has them apart, in bounded memory: by parts on disk."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adlogs.id_codes import IdCodes
from contracts.hashing import hash_ids
from contracts.progress import progress
from contracts.records import dataset_files

PART_ROWS = 1_000_000
"""Rows that are sorted in memory at once, about."""

_ANY = 2**31 - 1


class GroupCheck:
    """Tells whether the rows of each request follow one another; the ids of requests are kept."""

    def __init__(self) -> None:
        self._codes = IdCodes()
        self._last = -1
        self.is_grouped = True

    def add(self, ids: pa.Array) -> None:
        """Take the request ids of the next rows.

        Example:
            >>> check = GroupCheck()
            >>> check.add(pa.array(["a", "a", "b"])); check.add(pa.array(["b", "c"])); check.is_grouped
            True
            >>> check.add(pa.array(["a"])); check.is_grouped
            False
        """
        if not len(ids):
            return
        known = len(self._codes)
        codes = self._codes.add(ids)
        begins = np.diff(codes, prepend=self._last) != 0
        first = np.unique(codes, return_index=True)[1]
        again = begins & (codes < known)
        again |= begins & ~np.isin(np.arange(len(codes)), first)
        self.is_grouped = self.is_grouped and not again.any()
        self._last = int(codes[-1])


def group_rows(directory: Path, spill: Path) -> None:
    """Rewrite a dataset so that the rows of a request follow one another, in the order in which they stood.

    Args:
        directory: Of the dataset; its files are replaced.
        spill: An empty directory for the parts.
    """
    files = dataset_files(directory)
    total = sum(pq.read_metadata(file).num_rows for file in files)
    num_parts = max(1, -(-total // PART_ROWS))
    places = [spill / f"{part:05d}" for part in range(num_parts)]
    for place in places:
        place.mkdir()
    with progress("Bringing requests together", total=total) as advance:
        for number, file in enumerate(files):
            _divide(Path(file), places, number)
            Path(file).unlink()
        for part, place in enumerate(places):
            rows = _sorted(place)
            if rows is not None:
                pq.write_table(rows, directory / f"part-{part:05d}.parquet", compression="zstd", row_group_size=65_536)
                advance(rows.num_rows)
            shutil.rmtree(place)


def _divide(file: Path, places: list[Path], number: int) -> None:
    """Write the rows of a file to the parts that their requests belong to."""
    with pq.ParquetFile(file) as parquet:
        for step, batch in enumerate(parquet.iter_batches(PART_ROWS)):
            part = hash_ids(batch["request_id"].to_pylist(), _ANY) % len(places)
            for place in np.unique(part).tolist():
                rows = pa.Table.from_batches([batch]).filter(pa.array(part == place))
                pq.write_table(rows, places[place] / f"{number:06d}-{step:06d}.parquet", compression="lz4")


def _sorted(place: Path) -> pa.Table | None:
    """Rows of a part by request, those of a request in their order; requests in the order of their first row."""
    parts = [pq.read_table(path) for path in sorted(place.iterdir())]
    if not parts:
        return None
    whole = pa.concat_tables(parts).combine_chunks()
    codes = pc.dictionary_encode(whole["request_id"].combine_chunks()).indices.to_numpy()
    return whole.take(pa.array(np.argsort(codes, kind="stable")))
