"""Reads a log dataset for validation: file by file, row group by row group, a bounded slice of rows at a time."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adlogs.faults import DatasetCount, FaultLog, Place
from contracts.progress import progress

ROWS_AT_ONCE = 16_384
NOT_READABLE = "cannot be read, expected a whole Parquet file"
READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What reading a damaged Parquet file raises."""

NOT_SOUND = "holds bytes that are no {}"


@dataclass(frozen=True)
class Finding:
    """Rows that break a rule.

    Args:
        column: The column at fault.
        rule: What is wrong and what was expected.
        rows: bool [B].
        shown: Columns that make the example; the column itself unless given.
    """

    column: str
    rule: str
    rows: np.ndarray
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogSlice:
    """Some rows of a row group; ``columns`` holds only those of a type that their reader accepts."""

    place: Place
    columns: Mapping[str, pa.Array]
    num_rows: int

    def get(self, column: str) -> pa.Array | None:
        return self.columns.get(column)

    def note(self, finding: Finding, faults: FaultLog) -> None:
        names = finding.shown or (finding.column,)

        def example(row: int) -> object:
            values = {name: _plain(self.columns[name], row) for name in names if name in self.columns}
            return values if len(names) > 1 else values[names[0]]

        faults.note_rows(self.place, finding.column, finding.rule, finding.rows, example)


@dataclass(frozen=True)
class LogFile:
    """One Parquet file; ``columns`` are those that can be read as what they mean."""

    path: str
    num_rows: int
    num_row_groups: int
    columns: frozenset[str]


@dataclass
class LogDataset:
    """The files of a dataset; ``is_whole`` turns false where rows could not be read."""

    name: str
    files: Sequence[LogFile]
    is_whole: bool = field(default=True)

    @property
    def count(self) -> DatasetCount:
        groups = sum(file.num_row_groups for file in self.files)
        return DatasetCount(len(self.files), groups, sum(file.num_rows for file in self.files))

    @property
    def column_names(self) -> frozenset[str]:
        """Columns that some file holds, as what they mean."""
        return frozenset().union(*(file.columns for file in self.files))

    def knows(self, column: str) -> bool:
        """Whether all rows of a column could be read, so that an absent value is truly absent."""
        return self.is_whole and all(column in file.columns for file in self.files)

    def slices(self, columns: Collection[str], faults: FaultLog) -> Iterator[LogSlice]:
        """Stream the readable ones among ``columns``, with progress; what cannot be read becomes a fault."""
        with progress(f"Checking {self.name}", total=self.count.rows) as advance:
            for file in self.files:
                wanted = file.columns & set(columns)
                for group in range(file.num_row_groups if wanted else 0):
                    for part in self._group_slices(file, group, wanted, faults):
                        yield part
                        advance(part.num_rows)

    def _group_slices(self, file: LogFile, group: int, wanted: frozenset[str], faults: FaultLog) -> Iterator[LogSlice]:
        start = 0
        try:
            with pq.ParquetFile(file.path) as parquet:
                for batch in parquet.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=sorted(wanted)):
                    place = Place(self.name, file.path, group, start)
                    yield LogSlice(place, self._sound_columns(place, batch, wanted, faults), batch.num_rows)
                    start += batch.num_rows
        except READ_ERRORS as error:
            self.is_whole = False
            faults.note_file(self.name, file.path, None, NOT_READABLE, str(error), row_group=group)

    def _sound_columns(
        self, place: Place, batch: pa.RecordBatch, wanted: frozenset[str], faults: FaultLog
    ) -> dict[str, pa.Array]:
        """The wanted columns without those whose bytes are no values of their type, such as text that is not UTF-8."""
        sound = {}
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name not in wanted:  # a name that starts with a wanted one and a dot comes along
                continue
            try:
                array.validate(full=True)
                sound[name] = array
            except pa.ArrowInvalid as error:
                self.is_whole = False
                faults.note_file(
                    self.name, place.file, name, NOT_SOUND.format(array.type), str(error), row_group=place.row_group
                )
        return sound


def _plain(array: pa.Array, row: int) -> object:
    try:
        return array[row].as_py()
    except (ValueError, OverflowError):  # nanoseconds, or a time beyond the years that datetime can hold
        return str(array.slice(row, 1))
