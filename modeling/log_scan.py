"""Reads a log dataset in order, a slice of rows at a time."""

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from contracts.progress import progress
from contracts.records import ColumnKind, check_columns, open_dataset

ROWS_AT_ONCE = 32_768


def scan(
    path: str, columns: Collection[str], *, required: Mapping[str, ColumnKind], title: str
) -> Iterator[tuple[int, pa.Table]]:
    """Yield ``(position of the first row, rows)`` in the order of the dataset, with progress.

    Args:
        path: Of the dataset.
        columns: Columns to read where they exist, beside the required ones.
        required: Columns that must exist, with their kind.
        title: Shown beside the progress.

    Raises:
        LogError: The dataset is absent, or a required column is or is of another kind.
    """
    dataset = open_dataset(path)
    check_columns(dataset.schema, required, source=path)
    wanted = {*columns, *required}
    names = [name for name in dataset.schema.names if name in wanted]
    position = 0
    with progress(title, total=dataset.count_rows(), unit="rows") as advance:
        # little read-ahead: histories of many rows at once are what takes memory
        for batch in dataset.to_batches(names, batch_size=ROWS_AT_ONCE, batch_readahead=4, fragment_readahead=1):
            if batch.num_rows:
                yield position, pa.Table.from_batches([batch])
                position += batch.num_rows
                advance(batch.num_rows)


def dataset_columns(path: str) -> frozenset[str]:
    """Names of the columns of a dataset."""
    return frozenset(open_dataset(path).schema.names)
