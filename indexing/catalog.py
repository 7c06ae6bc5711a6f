"""The catalogue as of a moment, as ``indexing.plan`` found it: which rows of a dataset, and which updates, to embed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from contracts.errors import LogError
from contracts.parquet import sound_batches
from contracts.records import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from contracts.release import UpdatePosition
from indexing.by_dictionary import by_dictionary

if TYPE_CHECKING:
    from indexing.merge import MergedUpdates

READ_ROWS = 16_384
_PLAIN = {*REQUIRED_COLUMNS["ads"], *OPTIONAL_COLUMNS["ads"]}
"""What is read of an ad beside its features. Of an id there is one each, and the rest costs little."""
_NO_PRE_BUFFER = ds.ParquetFragmentScanOptions(use_buffered_stream=True, buffer_size=1 << 20, pre_buffer=False)


@dataclass(frozen=True)
class Catalog:
    """The newest row of each ad of one scenario, in a dataset and in the log of updates.

    Args:
        dataset: The ads dataset.
        kept: Whether a row is in the catalogue, one bit a row of the dataset in the order of its files, uint8.
        watermark: The latest ``valid_from`` of the dataset that was taken into account and does not lie ahead,
            microseconds UTC.
        counts: Rows read, and why others were left out; ``merged`` are ads that come from updates, ``ahead`` those
            whose row is of more than a day ahead.
        updates: What the log of updates changes; None without a log.
        position: How far the log was read.
        faults: Why content in the log was refused; the ad stays as it was.
        made_at: When the dataset was read, microseconds UTC.
    """

    dataset: ds.Dataset
    kept: np.ndarray
    watermark: int
    counts: dict[str, int]
    updates: "MergedUpdates | None" = None
    position: UpdatePosition | None = None
    faults: dict[str, int] = field(default_factory=dict)
    made_at: int = 0

    @property
    def warnings(self) -> list[str]:
        """What a person should look at in the dataset."""
        ahead, without = self.counts["ahead"], self.counts["no_scenario"]
        told = {
            f"{ahead:,} ads of the catalogue are valid from more than a day ahead; they count at once, the watermark "
            "leaves them out, and status and bid of updates hold over them": ahead,
            f"{without:,} rows of the catalogue have no scenario and are left out": without,
        }
        return [warning for warning, count in told.items() if count]

    @property
    def num_ads(self) -> int:
        return self.counts["kept"] + self.counts["merged"]

    @property
    def source(self) -> str:
        """Name of the dataset in messages."""
        return source_name(self.dataset)

    def batches(self, columns: Sequence[str], batch_size: int, skip_rows: int = 0) -> Iterator[tuple[pa.Table, str]]:
        """Stream columns of the ads, with the file they come from: the dataset's rows first, then the updates' ads.

        Batches are of ``batch_size`` but for the last of each file, however the file is laid out. Text of features is
        read as dictionaries, see ``indexing.by_dictionary``.

        Args:
            skip_rows: Ads at the beginning to leave out, whole batches; they are not read.
        """
        start = 0
        for fragment in self.dataset.get_fragments():
            num_rows = fragment.count_rows()
            num_kept = int(self._kept(start, start + num_rows).sum())
            if skip_rows < num_kept:
                yield from _rebatched(self._tables(fragment, columns, start, skip_rows), batch_size, fragment.path)
            start, skip_rows = start + num_rows, max(skip_rows - num_kept, 0)
        if self.updates is not None:
            yield from self.updates.batches(columns, batch_size, skip_rows)

    def _kept(self, start: int, stop: int) -> np.ndarray:
        first = start // 8
        bits = np.unpackbits(self.kept[first : -(-stop // 8)], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].astype(bool)

    def _tables(self, fragment: ds.Fragment, columns: Sequence[str], start: int, skip: int) -> Iterator[pa.Table]:
        """The kept rows of one file but for the first ``skip``, whose row groups are passed over."""
        fragment, schema = by_dictionary(fragment, self.dataset.schema, set(columns) - _PLAIN)
        if skip:
            fragment, start, skip = self._without_first_groups(fragment, start, skip)
        for batch in read_fragment(fragment, schema, columns, READ_ROWS):
            kept = self._kept(start, start + len(batch))
            start += len(batch)
            passed = min(skip, int(kept.sum()))
            kept[np.flatnonzero(kept)[:passed]] = False
            skip -= passed
            if kept.all():
                yield pa.Table.from_batches([batch])
            elif kept.any():
                yield pa.Table.from_batches([batch.filter(pa.array(kept))])

    def _without_first_groups(self, fragment: ds.Fragment, start: int, skip: int) -> tuple[ds.Fragment, int, int]:
        groups = fragment.row_groups
        for place, group in enumerate(groups):
            num_kept = int(self._kept(start, start + group.num_rows).sum())
            if skip < num_kept:
                return fragment.subset(row_group_ids=[one.id for one in groups[place:]]), start, skip
            start, skip = start + group.num_rows, skip - num_kept
        raise ValueError(f"{fragment.path}: has no {skip} more ads to pass over")


def _rebatched(tables: Iterator[pa.Table], batch_size: int, file: str) -> Iterator[tuple[pa.Table, str]]:
    """The same rows in tables of ``batch_size``, each of one chunk.

    A table that is given out keeps no rows of others in memory, but for the table that they were read in.
    """
    parts: list[pa.Table] = []
    lacking = batch_size
    for table in tables:
        start = 0
        while len(table) - start >= lacking:
            parts.append(table.slice(start, lacking))
            yield _joined(parts), file
            start, parts, lacking = start + lacking, [], batch_size
        if start < len(table):
            parts.append(table.slice(start))
            lacking -= len(table) - start
    if parts:
        yield _joined(parts), file


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).combine_chunks()


def check_features(dataset: ds.Dataset, columns: Sequence[str], *, model: str) -> None:
    """Refuse a dataset that lacks a column which a model was trained on, in any of its files.

    Raises:
        LogError: Names the file, the columns and the model.
    """
    for fragment in dataset.get_fragments():
        lacking = sorted(set(columns) - set(fragment.physical_schema.names))
        if lacking:
            raise LogError(f"{fragment.path}: lacks the columns {lacking} that {model} was trained on")


def read_dataset(dataset: ds.Dataset, columns: Sequence[str], batch_size: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Stream batches in the order of the files and their rows, with the file."""
    for fragment in dataset.get_fragments():
        for batch in read_fragment(fragment, dataset.schema, columns, batch_size):
            yield fragment.path, batch


def read_fragment(
    fragment: ds.Fragment, schema: pa.Schema, columns: Sequence[str], batch_size: int
) -> Iterator[pa.RecordBatch]:
    """Stream the batches of one file; little of it is in memory at once."""
    batches = fragment.to_batches(
        schema=schema,
        columns=list(columns),
        batch_size=batch_size,
        batch_readahead=2,
        fragment_readahead=1,
        fragment_scan_options=_NO_PRE_BUFFER,
    )
    yield from sound_batches(batches, source=fragment.path)


def source_name(dataset: ds.Dataset) -> str:
    """Name of a dataset in messages."""
    files = dataset.files
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"


def input_files(dataset: ds.Dataset) -> list[tuple[str, int, int]]:
    """Path, size and time of change of each file, by which a later run knows that they are the same."""
    stats = [(str(Path(file).absolute()), Path(file).stat()) for file in dataset.files]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
