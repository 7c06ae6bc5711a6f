"""Reads a log dataset in order, a slice of rows at a time."""

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import LogError
from contracts.parquet import sound_batches
from contracts.progress import progress
from contracts.records import ColumnKind, check_columns, open_dataset

ROWS_AT_ONCE = 32_768


def scan(
    path: str,
    columns: Collection[str],
    *,
    required: Mapping[str, ColumnKind],
    title: str,
    filled: Collection[str] = (),
) -> Iterator[tuple[int, pa.Table]]:
    """Yield ``(position of the first row, rows)`` in the order of the dataset, with progress.

    Args:
        path: Of the dataset.
        columns: Columns to read where they exist, beside the required ones.
        required: Columns that must exist, with their kind.
        title: Shown beside the progress.
        filled: Those of the required columns that no row may leave empty.

    Raises:
        LogError: The dataset is absent or damaged, or a required column is absent, empty or of another kind.
    """
    dataset = open_dataset(path)
    check_columns(dataset.schema, required, source=path)
    wanted = {*columns, *required}
    names = [name for name in dataset.schema.names if name in wanted]
    position = 0
    with progress(title, total=dataset.count_rows(), unit="rows") as advance:
        # little read-ahead: histories of many rows at once are what takes memory
        batches = dataset.to_batches(names, batch_size=ROWS_AT_ONCE, batch_readahead=4, fragment_readahead=1)
        for batch in sound_batches(batches, source=path):
            if batch.num_rows:
                _check_filled(batch, {name: required[name] for name in filled}, position, source=path)
                yield position, pa.Table.from_batches([batch])
                position += batch.num_rows
                advance(batch.num_rows)


def _check_filled(batch: pa.RecordBatch, columns: Mapping[str, ColumnKind], position: int, *, source: str) -> None:
    for name, kind in columns.items():
        if batch[name].null_count:
            row = position + pc.index(batch[name].is_null(), True).as_py()
            raise LogError(f"{source}: column {name} is missing in row {row}, expected {kind}")


def dataset_columns(path: str) -> frozenset[str]:
    """Names of the columns of a dataset."""
    return frozenset(open_dataset(path).schema.names)
