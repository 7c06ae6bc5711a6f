"""An index as Parquet, for use elsewhere: ids, embeddings as they are scored, and in the footer what made them.

    ad_id                string
    embedding_TASK       fixed_size_list<float>[D], one column a head
    bias_TASK            float, one column a head
    status, objective    string; objective is null where the catalogue has none
    bid                  float, null where the catalogue has none
    advertiser_id        string, null where the catalogue has none
    valid_from           timestamp[us, UTC]

Shapes: A ads, H heads, D width of a head's vector.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.artifact import create_aside, fsync
from contracts.errors import InputError
from contracts.progress import progress
from contracts.records import STATUSES
from indexing.arrays import release_pages
from indexing.index import Index
from indexing.store_files import refuse_inside

SUFFIX = ".parquet"
SCORE = (
    "p(TASK) = 1 / (1 + exp(-(dot(q[:D], embedding_TASK) + q[D] * bias_TASK + q[D + 1]))), q [D + 2] the query "
    "embedding of head TASK by the bundle adsieve.two_tower"
)
ROWS_PER_FILE = 1_000_000
_ROW_GROUP = 32_768
_TEXT_COLUMNS = ("status", "objective", "advertiser_id")


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    path: Path
    index: str
    num_ads: int
    num_files: int
    num_bytes: int


def export_index(index: Index, out: Path, *, rows_per_file: int = ROWS_PER_FILE) -> Exported:
    """Write an index as Parquet, a few thousand rows at a time; the files appear in one step or not at all.

    Args:
        index: Opened and verified.
        out: A file to create where the name ends with ``.parquet``, else a directory of several.
        rows_per_file: Ads of each file of a directory.

    Raises:
        InputError: ``out`` exists.
    """
    out = Path(out).absolute()
    schema, rows = _schema(index), _Rows(index)
    starts = [0] if out.suffix == SUFFIX else list(range(0, max(len(index), 1), rows_per_file))
    with _appearing(out) as aside, progress("Exporting ads", total=len(index), unit="ads") as advance:
        for number, start in enumerate(starts):
            stop = starts[number + 1] if number + 1 < len(starts) else len(index)
            path = aside if out.suffix == SUFFIX else aside / f"part-{number:05}{SUFFIX}"
            _write(path, schema, rows, start, stop, advance)
    files = [out] if out.is_file() else sorted(out.iterdir())
    size = sum(path.stat().st_size for path in files)
    return Exported(out, index.manifest.version, len(index), len(files), size)


def _schema(index: Index) -> pa.Schema:
    manifest = index.manifest
    fields = [pa.field("ad_id", pa.string(), nullable=False)]
    vector = pa.list_(pa.field("element", pa.float32(), nullable=False), manifest.head_dim)
    fields += [pa.field(f"embedding_{task}", vector, nullable=False) for task in manifest.tasks]
    fields += [pa.field(f"bias_{task}", pa.float32(), nullable=False) for task in manifest.tasks]
    fields += [
        pa.field("status", pa.string(), nullable=False),
        pa.field("bid", pa.float32()),
        pa.field("objective", pa.string()),
        pa.field("advertiser_id", pa.string()),
        pa.field("valid_from", pa.timestamp("us", "UTC"), nullable=False),
    ]
    about = {
        "index": manifest.version,
        "scenario": manifest.scenario,
        "two_tower": manifest.two_tower,
        "heavy": manifest.heavy or "",
        "tasks": json.dumps(manifest.tasks),
        "head_dim": str(manifest.head_dim),
        "precision": manifest.precision,
        "score": SCORE,
        "watermark": manifest.watermark,
    }
    return pa.schema(fields, metadata={f"adsieve.{name}": value for name, value in about.items()})


class _Rows:
    """Rows of an index as Arrow columns."""

    def __init__(self, index: Index) -> None:
        self._index = index
        # An entry more at the end, null: code -1 means none.
        self._objectives = pa.array([*index.manifest.objectives, None], pa.string())
        self._statuses = pa.array(STATUSES)
        self._advertisers = index.advertiser_ids.texts(0, len(index.advertiser_ids))

    def columns(self, start: int, stop: int) -> list[pa.Array]:
        index, rows = self._index, slice(start, stop)
        objectives = index.objectives[rows].astype(np.int64) % len(self._objectives)
        advertisers = index.advertisers[rows]
        bids = index.bids[rows]
        return [
            index.id_table.texts(start, stop),
            *self._vectors(rows),
            *(pa.array(column) for column in np.ascontiguousarray(index.bias[rows].T)),
            self._statuses.take(pa.array(index.status[rows])),
            pa.array(bids, mask=np.isnan(bids)),
            self._objectives.take(pa.array(objectives)),
            self._advertisers.take(pa.array(advertisers, mask=advertisers < 0)),
            pa.array(index.valid_from[rows], pa.timestamp("us", "UTC")),
        ]

    def release_pages(self) -> None:
        """Give back the memory of what was read so far."""
        index = self._index
        index.id_table.release_pages()
        release_pages(index.vectors, index.bias, index.scales, index.status, index.bids, index.objectives)
        release_pages(index.advertisers, index.valid_from)

    def _vectors(self, rows: slice) -> Iterator[pa.Array]:
        """Vectors of each head as ``towers.serving.score`` multiplies them, fp32."""
        index, width = self._index, self._index.manifest.head_dim
        vectors = index.vectors[rows].astype(np.float32)
        element = pa.field("element", pa.float32(), nullable=False)
        for head in range(len(index.manifest.tasks)):
            of_head = vectors[:, head * width : (head + 1) * width]
            if index.scales is not None:
                of_head = of_head * index.scales[rows, head, None]
            flat = pa.array(np.ascontiguousarray(of_head).reshape(-1))
            yield pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(element, width))


def _write(path: Path, schema: pa.Schema, rows: _Rows, start: int, stop: int, advance: Callable[[int], None]) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=list(_TEXT_COLUMNS)) as writer:
        for at in range(start, stop, _ROW_GROUP):
            end = min(at + _ROW_GROUP, stop)
            writer.write_batch(pa.record_batch(rows.columns(at, end), schema=schema))
            rows.release_pages()
            advance(end - at)
    fsync(path)


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A path beside ``out`` to write to, renamed to it when the block ends without an error.

    Readers of Parquet elsewhere take every file of a directory for data, so there is no mark of completion in it.
    """
    refuse_inside(out)
    _refuse_existing(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside, lock = create_aside(out)
    written = aside / out.name if out.suffix == SUFFIX else aside
    try:
        yield written
        fsync(aside)
        _refuse_existing(out)
        os.rename(written, out)
        fsync(out.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(lock)


def _refuse_existing(out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"--out {out}: exists, and nothing is overwritten; give another path, or remove it first")
