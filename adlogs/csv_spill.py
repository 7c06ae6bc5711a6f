"""Sorts a stream of impressions into days on disk, in bounded memory: files in any order give a day at a time."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.columns import instants

DAY_US = 86_400_000_000
HELD_ROWS = 400_000
"""Rows that wait in memory before they go to their days' files."""


class DaySpill:
    """Takes rows in any order and gives them back by UTC day, each day's in the order in which they came.

    Args:
        directory: Empty; the rows lie there meanwhile.
        schema: Of the rows; ``event_time`` is among its columns.
    """

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self._directory, self._schema = directory, schema
        self._held: dict[int, list[pa.Table]] = defaultdict(list)
        self._num_held = self._num_files = 0
        self._files: dict[int, list[Path]] = defaultdict(list)
        self.rows: Counter[int] = Counter()  # by day

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows; none lacks its time."""
        days = instants(batch["event_time"]) // DAY_US
        for day in np.unique(days).tolist():
            self._held[day].append(pa.Table.from_batches([batch]).filter(pa.array(days == day)))
            self.rows[day] += self._held[day][-1].num_rows
        self._num_held += batch.num_rows
        if self._num_held >= HELD_ROWS:
            self._flush()

    def days(self) -> list[int]:
        """Days since 1970 that have rows, in order."""
        self._flush()
        return sorted(self._files)

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """Each day and its rows; what was read is removed."""
        for day in self.days():
            parts = [pq.read_table(path) for path in self._files[day]]
            yield day, pa.concat_tables(parts).combine_chunks()
            for path in self._files[day]:
                path.unlink()

    def _flush(self) -> None:
        for day, tables in self._held.items():
            path = self._directory / f"{self._num_files:06d}.parquet"
            pq.write_table(pa.concat_tables(tables), path, compression="lz4")
            self._files[day].append(path)
            self._num_files += 1
        self._held.clear()
        self._num_held = 0
