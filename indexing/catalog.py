"""The catalogue as of a moment: the newest row of each ad, from a dataset of any size, in bounded memory.

Two passes over the files. The first reads ids and times only, spreads them over temporary files by the hash of the id,
and decides within each such file, which fits into memory, which rows to keep. The second streams the kept rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.ipc as ipc

from contracts.errors import LogError
from contracts.parquet import sound_batches
from contracts.records import REQUIRED_COLUMNS, check_columns, plain_text, utc_micros
from indexing.id_keys import array_bytes, hashes, stored_keys

ROWS_PER_PART = 250_000
_BATCH_ROWS = 65_536
_NO_PRE_BUFFER = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)


@dataclass(frozen=True)
class Catalog:
    """Which rows of an ads dataset make the catalogue of one scenario.

    Args:
        dataset: The ads dataset.
        kept: Whether a row is in the catalogue, bool [rows of the dataset], in the order of its files.
        watermark: The latest ``valid_from`` that was taken into account, microseconds UTC.
        counts: Rows read, and why the others were left out.
    """

    dataset: ds.Dataset
    kept: np.ndarray
    watermark: int
    counts: dict[str, int]

    @property
    def num_ads(self) -> int:
        return self.counts["kept"]

    @property
    def source(self) -> str:
        """Name of the dataset in messages."""
        return _source(self.dataset)

    def batches(self, columns: Sequence[str], batch_size: int) -> Iterator[tuple[pa.Table, str]]:
        """Stream the kept rows' columns, at most ``batch_size`` at once, with the file they come from."""
        start = 0
        for file, batch in _read(self.dataset, columns, batch_size):
            kept = self.kept[start : start + len(batch)]
            start += len(batch)
            if kept.any():
                yield pa.Table.from_batches([batch.filter(pa.array(kept))]), file


def plan_catalog(dataset: ds.Dataset, *, scenario: str, as_of: int | None, directory: Path) -> Catalog:
    """Find the newest row of each ad, and keep it where it is of ``scenario``.

    Args:
        dataset: Columns ``ad_id``, ``valid_from``, ``scenario``.
        as_of: Microseconds UTC; rows that begin later are left out. None takes all rows. The watermark is the latest
            row taken, never ``as_of`` itself, so that a moment in the future hides no update that is still to come.
        directory: For temporary files; emptied by the caller.

    Raises:
        LogError: Columns are missing or of a wrong type, an ad has two rows with the same ``valid_from``, or nothing is
            left.
    """
    check_columns(dataset.schema, REQUIRED_COLUMNS["ads"], source=_source(dataset))
    num_rows = dataset.count_rows()
    if not num_rows:
        raise LogError(f"{_source(dataset)}: has no rows")
    parts = _spill(dataset, scenario, directory, num_parts=max(1, -(-num_rows // ROWS_PER_PART)))
    kept = np.lib.format.open_memmap(directory / "kept.npy", "w+", np.bool_, (num_rows,))
    counts = dict.fromkeys(("rows", "later", "superseded", "other_scenario", "kept"), 0)
    watermark = -(1 << 62)
    for part in parts:
        table = _read_part(part)
        part_counts, latest = _choose(table, as_of, kept, dataset)
        counts = {name: counts[name] + part_counts.get(name, 0) for name in counts}
        watermark = max(watermark, latest)
    if not counts["kept"]:
        raise LogError(f"{_source(dataset)}: no ad of scenario {scenario!r} as of this moment; {counts}")
    return Catalog(dataset, kept, watermark, counts)


def check_features(dataset: ds.Dataset, columns: Sequence[str], *, model: str) -> None:
    """Refuse a dataset that lacks a column which a model was trained on, in any of its files.

    Raises:
        LogError: Names the file, the columns and the model.
    """
    for fragment in dataset.get_fragments():
        lacking = sorted(set(columns) - set(fragment.physical_schema.names))
        if lacking:
            raise LogError(f"{fragment.path}: lacks the columns {lacking} that {model} was trained on")


def _read(dataset: ds.Dataset, columns: Sequence[str], batch_size: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Stream batches in the order of the files and their rows."""
    for fragment in dataset.get_fragments():
        batches = fragment.to_batches(
            schema=dataset.schema,
            columns=list(columns),
            batch_size=batch_size,
            batch_readahead=2,
            fragment_readahead=1,
            fragment_scan_options=_NO_PRE_BUFFER,
        )
        for batch in sound_batches(batches, source=fragment.path):
            yield fragment.path, batch


def _spill(dataset: ds.Dataset, scenario: str, directory: Path, num_parts: int) -> list[Path]:
    """Write id, time, row and whether the scenario is ours to one file per share of the hash space."""
    paths = [directory / f"part-{part:05}.arrow" for part in range(num_parts)]
    schema = pa.schema([("ad_id", pa.string()), ("time", pa.int64()), ("row", pa.int64()), ("ours", pa.bool_())])
    writers = [ipc.new_stream(path, schema) for path in paths]
    start = 0
    for file, batch in _read(dataset, ("ad_id", "valid_from", "scenario"), _BATCH_ROWS):
        ids = plain_text(batch["ad_id"])
        if ids.null_count:
            raise LogError(f"{file}: column ad_id is missing in {ids.null_count} rows, expected text")
        times = utc_micros(batch["valid_from"], column="valid_from", source=file)
        ours = pc.fill_null(pc.equal(plain_text(batch["scenario"]), scenario), False)
        rows = pa.RecordBatch.from_arrays(
            [ids, pa.array(times), pa.array(np.arange(start, start + len(ids))), ours], schema=schema
        )
        start += len(ids)
        share = _hash_share(ids, num_parts)
        for part in np.unique(share):
            writers[part].write_batch(rows.filter(pa.array(share == part)))
    for writer in writers:
        writer.close()
    return paths


def _hash_share(ids: pa.StringArray, num_parts: int) -> np.ndarray:
    if num_parts == 1:
        return np.zeros(len(ids), np.int64)
    data, lengths = array_bytes(ids)
    keys = stored_keys(np.r_[data, np.zeros(64, np.uint8)], np.cumsum(lengths) - lengths, lengths)
    return (hashes(keys) % np.uint64(num_parts)).astype(np.int64)


def _read_part(path: Path) -> pa.Table:
    with ipc.open_stream(path) as reader:
        return reader.read_all().combine_chunks()


def _choose(table: pa.Table, as_of: int | None, kept: np.ndarray, dataset: ds.Dataset) -> tuple[dict[str, int], int]:
    """Mark the rows to keep among all rows of some ads; return counts and the latest time."""
    times, rows = table["time"].to_numpy(), table["row"].to_numpy()
    codes = _codes(table["ad_id"])
    order = np.lexsort((times, codes))
    same_ad = np.diff(codes[order]) == 0
    tied = np.flatnonzero(same_ad & (np.diff(times[order]) == 0))
    if len(tied):
        first, second = order[tied[0]], order[tied[0] + 1]
        raise LogError(_describe_tie(table, dataset, rows[[first, second]], first, len(tied)))
    in_time = order if as_of is None else order[times[order] <= as_of]
    newest = in_time[np.r_[np.diff(codes[in_time]) != 0, np.ones(min(len(in_time), 1), bool)]]
    ours = table["ours"].to_numpy()[newest]
    kept[rows[newest[ours]]] = True
    counts = {
        "rows": len(times),
        "later": len(times) - len(in_time),
        "superseded": len(in_time) - len(newest),
        "other_scenario": len(newest) - int(ours.sum()),
        "kept": int(ours.sum()),
    }
    return counts, int(times[in_time].max(initial=-(1 << 62)))


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    encoded = column.combine_chunks().dictionary_encode()
    indices = encoded.indices if isinstance(encoded, pa.DictionaryArray) else encoded.combine_chunks().indices
    return np.asarray(indices).astype(np.int64)


def _describe_tie(table: pa.Table, dataset: ds.Dataset, rows: np.ndarray, at: int, count: int) -> str:
    fragments = list(dataset.get_fragments())
    ends = np.cumsum([fragment.count_rows() for fragment in fragments])
    first, second = (fragments[int(np.searchsorted(ends, row, side="right"))].path for row in sorted(rows))
    moment = pa.scalar(table["time"][int(at)].as_py(), pa.timestamp("us", "UTC")).as_py().isoformat()
    return (
        f"{second}: ad {table['ad_id'][int(at)].as_py()!r} has a second row with valid_from {moment}, "
        f"the other is in {first}; {count} such rows; keep one of each"
    )


def _source(dataset: ds.Dataset) -> str:
    files = dataset.files
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"
