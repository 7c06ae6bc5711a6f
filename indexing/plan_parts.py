"""Spreads ids and times of a dataset over temporary files by hash of the id, so that all rows of an ad are together.

Each file fits into memory, however large the dataset is.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.ipc as ipc

from contracts.errors import LogError
from contracts.moments import FIRST_US, LAST_US
from contracts.records import plain_text, utc_micros
from indexing.catalog import read_dataset
from indexing.id_keys import array_bytes, hashes, stored_keys

ROWS_PER_PART = 50_000
MAX_PARTS = 500
"""Files that are open at once; beyond ``ROWS_PER_PART`` times as many rows, parts are larger."""

BATCH_ROWS = 65_536
SPILLED = pa.schema([("ad_id", pa.string()), ("time", pa.int64()), ("row", pa.int64()), ("ours", pa.bool_())])
_EXPECTED_TIME = "expected a time of the years 1 to 9999"


def spill(dataset: ds.Dataset, scenario: str, directory: Path) -> tuple[list[Path], int]:
    """Write id, time, row and whether the scenario is ours to one file per share of the hash space.

    Args:
        dataset: Columns ``ad_id``, ``valid_from``, ``scenario``.
        directory: For the files.

    Returns:
        The files, and how many rows name no scenario; they are in none.

    Raises:
        LogError: An id or time is missing, or a time is outside the calendar.
    """
    num_parts = min(MAX_PARTS, -(-dataset.count_rows() // ROWS_PER_PART))
    paths = [directory / f"part-{part:05}.arrow" for part in range(num_parts)]
    writers = [ipc.new_stream(path, SPILLED) for path in paths]
    start = num_without = 0
    for file, batch in read_dataset(dataset, ("ad_id", "valid_from", "scenario"), BATCH_ROWS):
        ids = plain_text(batch["ad_id"])
        if ids.null_count:
            raise LogError(f"{file}: column ad_id is missing in {ids.null_count} rows, expected text")
        times = _times(batch["valid_from"], file)
        num_without += batch["scenario"].null_count
        ours = pc.fill_null(pc.equal(plain_text(batch["scenario"]), scenario), False)
        rows = pa.RecordBatch.from_arrays(
            [ids, pa.array(times), pa.array(np.arange(start, start + len(ids))), ours], schema=SPILLED
        )
        start += len(ids)
        share = hash_share(ids, num_parts)
        order = np.argsort(share, kind="stable")
        bounds = np.searchsorted(share[order], np.arange(num_parts + 1))
        by_part = rows.take(pa.array(order)) if num_parts > 1 else rows
        for part in np.flatnonzero(np.diff(bounds)):
            writers[part].write_batch(by_part.slice(bounds[part], bounds[part + 1] - bounds[part]))
    for writer in writers:
        writer.close()
    return paths, num_without


def _times(column: pa.Array, file: str) -> np.ndarray:
    """``valid_from`` in microseconds, int64 [B], of years that a date can have: the watermark is written as one."""
    try:
        times = utc_micros(column, column="valid_from", source=file)
    except pa.ArrowInvalid as error:  # seconds or milliseconds that overflow as microseconds
        raise LogError(f"{file}: column valid_from: {error}; {_EXPECTED_TIME}") from None
    beyond = (times < FIRST_US) | (times > LAST_US)
    if beyond.any():
        raise LogError(
            f"{file}: column valid_from holds {times[beyond][0]} microseconds since 1970, {_EXPECTED_TIME} "
            f"({beyond.sum()} such rows so far)"
        )
    return times


def hash_share(ids: pa.StringArray, num_parts: int) -> np.ndarray:
    """Which file the rows of each id are in, int64 [B]."""
    if num_parts == 1 or not len(ids):
        return np.zeros(len(ids), np.int64)
    data, lengths = array_bytes(ids)
    keys = stored_keys(np.r_[data, np.zeros(64, np.uint8)], np.cumsum(lengths) - lengths, lengths)
    return (hashes(keys) % np.uint64(num_parts)).astype(np.int64)


def read_part(path: Path) -> pa.Table:
    """All rows of one file, of the columns of ``SPILLED``."""
    with ipc.open_stream(path) as reader:
        return reader.read_all().combine_chunks()
