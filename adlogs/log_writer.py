"""Writes the Parquet files of a log that is being made."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUPS = {"requests": 4_096, "candidates": 65_536, "ads": 16_384, "outcomes": 65_536}
ROWS_A_FILE = 1_000_000


class LogWriter:
    """Writes tables below a directory, a dataset each, and counts their rows.

    Args:
        directory: Of the log.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.counts: Counter[str] = Counter()

    def write(self, dataset: str, stem: str, table: pa.Table) -> None:
        """Write one file; a table without rows makes none."""
        if table.num_rows:
            place = self._directory / dataset
            place.mkdir(exist_ok=True)
            path = place / f"{stem}.parquet"
            pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUPS[dataset])
            self.counts[dataset] += table.num_rows


class PartWriter:
    """Gathers batches of one dataset into files of bounded size, ``part-00000.parquet`` and so on.

    Args:
        writer: Of the log.
        dataset: Of the files.
    """

    def __init__(self, writer: LogWriter, dataset: str) -> None:
        self._writer, self._dataset = writer, dataset
        self._held: list[pa.Table] = []
        self._num_held = self._num_parts = 0

    def add(self, table: pa.Table) -> None:
        """Take rows, which follow those before."""
        self._held.append(table)
        self._num_held += table.num_rows
        if self._num_held >= ROWS_A_FILE:
            self.close()

    def close(self) -> None:
        """Write what is left."""
        if self._held:
            self._writer.write(self._dataset, f"part-{self._num_parts:05d}", pa.concat_tables(self._held))
            self._num_parts += 1
        self._held, self._num_held = [], 0
