"""Streams the CSV files of one table as Arrow batches in the names and types of a log.

A value that cannot be read becomes a LogError with file, line, column, value and what was expected.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_files import CsvBatch, files_of, header_of, line_of, read_batches
from adlogs.csv_mapping import CsvMapping, Lookup, TableMapping
from adlogs.csv_values import BadValueError, arrow_type, read_values
from contracts.errors import LogError
from contracts.progress import progress


@dataclass(frozen=True)
class CsvTable:
    """One table of a mapping, its files opened one after another.

    Args:
        name: Its place in the mapping, for progress and messages.
        directory: The folder of the files.
        mapping: Of the folder.
        table: Of this table.
        required: Names in the log whose values must not be missing.
    """

    name: str
    directory: Path
    mapping: CsvMapping
    table: TableMapping | Lookup
    required: frozenset[str] = field(default=frozenset())

    @property
    def files(self) -> list[Path]:
        return files_of(self.directory, self.table.files)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of what is read."""
        return pa.schema(
            [pa.field(column.name, arrow_type(self.mapping.reading(column))) for column in self.table.columns.values()]
        )

    def left_out(self) -> list[str]:
        """Columns of the files that the mapping does not name."""
        header = header_of(self.files[0], self.mapping.csv_format(self.table).separator)
        return [name for name in header if name not in self.table.columns]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Stream the rows, with progress.

        Raises:
            LogError: A file, column or value is not as the mapping says.
        """
        files = self.files
        with progress(f"Reading {self.name}", total=None) as advance:
            for path in files:
                for batch in read_batches(path, list(self.table.columns), self.mapping.csv_format(self.table)):
                    yield self._typed(batch)
                    advance(batch.columns.num_rows)

    def _typed(self, batch: CsvBatch) -> pa.RecordBatch:
        arrays = {}
        for source, column in self.table.columns.items():
            texts = batch.columns[source]
            if column.name in self.required and texts.null_count:
                row = pc.index(texts.is_null(), True).as_py()
                raise self._fault(batch, row, source, f"has no value, expected one for {column.name}")
            try:
                arrays[column.name] = read_values(texts, self.mapping.reading(column))
            except BadValueError as error:
                raise self._fault(batch, error.row, source, f"is {error}") from None
        return pa.RecordBatch.from_pydict(arrays, schema=self.schema)

    def _fault(self, batch: CsvBatch, row: int, source: str, message: str) -> LogError:
        line = line_of(batch.path, batch.start + row, self.mapping.csv_format(self.table).separator)
        return LogError(
            f"{batch.path}, line {line}: column {source!r} {message}",
            next_step=f"mend the line, or what the mapping says of {source!r}; nothing was written",
        )


@dataclass(frozen=True)
class LoadedLookup:
    """A look-up table in memory: one row a key.

    Args:
        name: Its name in the mapping.
        key: The column that finds a row.
        keys: string [K], distinct.
        columns: The other columns, by name.
    """

    name: str
    key: str
    keys: pa.Array
    columns: Mapping[str, pa.Array]

    def joined(self, keys: pa.Array) -> tuple[dict[str, pa.Array], int]:
        """The columns of each key, null where it is not known, and how many are known."""
        found = pc.index_in(keys, value_set=self.keys, skip_nulls=True)
        return {name: array.take(found) for name, array in self.columns.items()}, len(found) - found.null_count


def load_lookups(directory: Path, mapping: CsvMapping) -> list[LoadedLookup]:
    """Read every look-up table of a mapping.

    Raises:
        LogError: As reading; or a key comes twice.
    """
    return [_load(name, lookup, directory, mapping) for name, lookup in mapping.lookups.items()]


def _load(name: str, lookup: Lookup, directory: Path, mapping: CsvMapping) -> LoadedLookup:
    table = CsvTable(name, directory, mapping, lookup, frozenset({lookup.key}))
    whole = pa.Table.from_batches(table.batches(), schema=table.schema).combine_chunks()
    arrays = {column: whole[column].combine_chunks() for column in whole.schema.names}
    keys = arrays.pop(lookup.key)
    counts = pc.value_counts(keys)
    twice = np.flatnonzero(np.asarray(counts.field("counts")) > 1)
    if len(twice):
        key = counts.field("values")[int(twice[0])].as_py()
        raise LogError(f"{table.files[0]}: {lookup.key} {key!r} has several rows, expected one; {len(twice)} such keys")
    return LoadedLookup(name, lookup.key, keys, arrays)
