"""Samples of a log that a schema is inferred from: by column, so that memory holds one at a time.

Letters: B rows of a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adlogs.csv_files import SUFFIXES, CsvFormat, header_of, read_batches
from adlogs.csv_folder import GUESSED_ROWS, SEPARATORS
from adlogs.csv_guess import NULL_WORDS, guess_column
from adlogs.csv_values import BadValueError, read_values
from contracts.errors import LogError
from contracts.parquet import readable
from contracts.records import dataset_files, open_dataset

MAX_FILES = 64
"""Files of a dataset that are looked into, spread over all of them."""

_LEAST_A_FILE = 64


class Sample(Protocol):
    """Some rows of a dataset."""

    @property
    def names(self) -> Sequence[str]:
        """Its columns."""

    @property
    def num_rows(self) -> int:
        """B."""

    @property
    def num_all(self) -> int | None:
        """Rows of the whole dataset, where they are known."""

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the dataset."""

    def column(self, name: str) -> pa.Array:
        """Values of B rows, dictionaries decoded."""


class ParquetSample:
    """The first rows of the files of a dataset, equally many of each, so that all its days are there.

    Args:
        path: Of the dataset.
        rows: To take in all.

    Raises:
        LogError: There is no file, or one is damaged.
    """

    def __init__(self, path: str, rows: int) -> None:
        dataset = open_dataset(path)
        self._path = path
        self._types = {field.name: _plain_type(field.type) for field in dataset.schema}
        files = dataset_files(path)
        step = max(1, -(-len(files) // MAX_FILES))
        with readable(path):
            counts = {file: pq.read_metadata(file).num_rows for file in files}
        self._num_all = sum(counts.values())
        chosen = files[::step]
        share = max(_LEAST_A_FILE, rows // len(chosen))
        left = max(0, rows - sum(min(counts[file], share) for file in chosen))
        self._takes = []
        for file in chosen:
            take = min(counts[file], share + left)
            left = max(0, left - max(0, take - share))
            self._takes.append((file, take))

    @property
    def names(self) -> list[str]:
        return list(self._types)

    @property
    def num_rows(self) -> int:
        return sum(take for _, take in self._takes)

    @property
    def num_all(self) -> int | None:
        return self._num_all

    @property
    def is_whole(self) -> bool:
        return self.num_rows == self._num_all

    def column(self, name: str) -> pa.Array:
        parts = []
        with readable(self._path):
            for file, take in self._takes:
                parts.append(self._part(file, take, name))
            whole = pa.concat_arrays(parts)
            whole.validate(full=True)
        return whole

    def _part(self, file: str, take: int, name: str) -> pa.Array:
        type_ = self._types[name]
        with pq.ParquetFile(file) as parquet:
            if name not in parquet.schema_arrow.names:
                return pa.nulls(take, type_)
            found: list[pa.Array] = []
            for batch in parquet.iter_batches(max(take, 1), columns=[name]):
                array = batch.column(batch.schema.get_field_index(name)).slice(0, take)
                found.append(_decoded(array).cast(type_))
                take -= len(array)
                if take <= 0:
                    break
        return pa.concat_arrays(found) if found else pa.nulls(0, type_)


@dataclass(frozen=True)
class TableSample:
    """Rows in memory."""

    table: pa.Table
    num_all: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.num_rows == self.num_all

    @property
    def names(self) -> list[str]:
        return self.table.schema.names

    @property
    def num_rows(self) -> int:
        return self.table.num_rows

    def column(self, name: str) -> pa.Array:
        return _decoded(self.table[name].combine_chunks())

    def take(self, rows: np.ndarray, names: Sequence[str]) -> "TableSample":
        """Some rows of some columns."""
        return TableSample(self.table.select(list(names)).take(pa.array(rows)))


def flat_sample(path: Path, rows: int) -> TableSample:
    """The first rows of a flat table in Parquet or CSV.

    Raises:
        LogError: There is neither, or it cannot be read.
    """
    csv_files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES)) if path.is_dir() else []
    if path.name.endswith(SUFFIXES):
        csv_files = [path]
    if not csv_files:
        sample = ParquetSample(str(path), rows)
        return TableSample(pa.table({name: sample.column(name) for name in sample.names}), sample.num_all)
    if len({str(header_of(file, _separator(file))) for file in csv_files}) > 1:
        raise LogError(
            f"{path}: its CSV files have different columns, expected one table",
            next_step=f"make a log of them first: adsieve convert csv {path} --propose mapping.yaml",
        )
    share = max(1, rows // len(csv_files))
    return TableSample(pa.concat_tables(_csv_table(file, share) for file in csv_files).combine_chunks())


def _separator(path: Path) -> str:
    return max(SEPARATORS, key=lambda separator: len(header_of(path, separator)))


def _csv_table(path: Path, rows: int) -> pa.Table:
    separator = _separator(path)
    parts, held = [], 0
    for batch in read_batches(path, None, CsvFormat(separator=separator, null_values=NULL_WORDS)):
        parts.append(batch.columns.slice(0, rows - held))
        held += parts[-1].num_rows
        if held >= rows:
            break
    if not parts:
        raise LogError(f"{path}: holds no row below its header")
    table = pa.Table.from_batches(parts).combine_chunks()
    return pa.table({name: _guessed(name, table[name].combine_chunks()) for name in table.schema.names})


def _guessed(name: str, texts: pa.Array) -> pa.Array:
    guess = guess_column(name, texts.slice(0, GUESSED_ROWS))
    try:
        return read_values(texts, guess.reading)
    except BadValueError:
        return texts


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return type_.value_type
    if pa.types.is_list(type_) and pa.types.is_dictionary(type_.value_type):
        return pa.list_(type_.value_type.value_type)
    return type_


def _decoded(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_list(array.type) and pa.types.is_dictionary(array.type.value_type):
        return pc.cast(array, pa.list_(array.type.value_type.value_type))
    return array
