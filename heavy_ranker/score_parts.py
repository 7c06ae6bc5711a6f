"""The parts of a scored log: which rows of which source file, whether one is done, and how one is written whole.

A finished part says in its footer what scored it and what came out, so that a later call can go on and add up.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.artifact import file_sha256, fsync
from contracts.errors import InputError
from contracts.parquet import readable
from contracts.records import TEACHER_SAW_NONE, TEACHER_SEEN_UNTIL, LogPaths, dataset_files

SCORED_BY, COUNTS = b"adsieve.scored_by", b"adsieve.counts"
TEACHER_VERSION = "teacher_version"
ROWS_PER_PART = 1_000_000
"""Source files of more rows are divided between row groups, so that a part is never long to redo."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows of a part, or of all parts.

    Args:
        rows: All of them.
        scored: Those with scores.
        seen: Of the scored, those whose request is not later than the data that a single bundle was trained on.
        outside: Without scores, since their request is outside the window or not in the log.
        no_ad: Without scores, since their ad has no row as of the request.
        no_member: Without scores, since the series has no member that has not trained on them.
    """

    rows: int = 0
    scored: int = 0
    seen: int = 0
    outside: int = 0
    no_ad: int = 0
    no_member: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Row groups of one source file and their scored copy; ``signature`` is what its footer must say."""

    source: str
    target: str
    row_groups: tuple[int, ...]
    rows: int
    signature: str


def plan_parts(log: LogPaths, directory: Path, call: str, *, rows_per_part: int = ROWS_PER_PART) -> list[Part]:
    """Divide the candidates of a log into parts.

    Args:
        directory: Of the scored copy; what a killed writer left there is removed.
        call: What scores, in words: a part of another call is refused.

    Raises:
        InputError: The directory holds a Parquet file that is none of the parts.
    """
    for left in directory.glob(".*.partial"):
        left.unlink(missing_ok=True)
    parts: list[Part] = []
    for source in dataset_files(log.candidates):
        with readable(source):
            metadata = pq.ParquetFile(source).metadata
        checksum = file_sha256(Path(source))[:12]
        for groups, rows in _group_runs(metadata, rows_per_part):
            target = directory / f"{len(parts):05d}-{Path(source).stem}.parquet"
            signature = f"{call}, row groups {groups[0]} to {groups[-1]}, {rows} rows with sha256 {checksum}"
            parts.append(Part(source=source, target=str(target), row_groups=groups, rows=rows, signature=signature))
    strangers = {path.name for path in directory.glob("*.parquet")} - {Path(part.target).name for part in parts}
    if strangers:
        raise InputError(
            f"{directory}: holds {sorted(strangers)[0]}, which no source file explains; choose another --out"
        )
    return parts


def _group_runs(metadata: pq.FileMetaData, rows_per_part: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Consecutive row groups of at most ``rows_per_part`` rows together, or one larger one; with their rows."""
    run: list[int] = []
    rows = 0
    for group in range(metadata.num_row_groups):
        more = metadata.row_group(group).num_rows
        if run and rows + more > rows_per_part:
            yield tuple(run), rows
            run, rows = [], 0
        run.append(group)
        rows += more
    if run:
        yield tuple(run), rows


def counts_of(part: Part) -> Counts | None:
    """What a finished part came to; None where it is not there yet.

    Raises:
        InputError: Another call wrote it: no two teachers mix.
    """
    path = Path(part.target)
    if not path.exists():
        return None
    with readable(path):
        footer = pq.read_metadata(path).metadata or {}
    found = footer.get(SCORED_BY, b"another program").decode()
    if found != part.signature:
        raise InputError(f"{path}: was scored by {found}, this call is {part.signature}; choose another --out")
    return msgspec.json.decode(footer[COUNTS], type=Counts)


class PartWriter:
    """Adds scores to the rows of one part, slice by slice.

    Args:
        writer: Of the Parquet file.
        schema: The source's columns, then one a task and the teacher's version.
        num_tasks: K.
        version: Of the teacher.
    """

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema, num_tasks: int, version: str) -> None:
        self._writer, self._schema, self._num_tasks = writer, schema, num_tasks
        self._version = pa.array([version])

    def write(self, batch: pa.RecordBatch, logits: np.ndarray) -> None:
        """Append rows [B] with their logits float32 [B, K], NaN for null."""
        unscored = np.isnan(logits[:, 0])
        scores = [pa.array(logits[:, task], pa.float32(), mask=unscored) for task in range(self._num_tasks)]
        versions = self._version.take(pa.array(np.zeros(len(logits), np.int8), mask=unscored))
        self._writer.write_batch(pa.record_batch([*batch.columns, *scores, versions], schema=self._schema))

    def finish(self, part: Part, counts: Counts, *, seen_until: int | None) -> None:
        """Write what the footer says.

        Args:
            seen_until: Microseconds UTC, the latest request that the teacher may have trained on; None of a series.
        """
        seen = TEACHER_SAW_NONE if seen_until is None else seen_until
        self._writer.add_key_value_metadata(
            {
                SCORED_BY: part.signature.encode(),
                COUNTS: msgspec.json.encode(counts),
                TEACHER_SEEN_UNTIL: str(seen).encode(),
            }
        )


@contextmanager
def writing(part: Part, source: pa.Schema, tasks: tuple[str, ...], version: str) -> Iterator[PartWriter]:
    """Write one part aside and put it in place, whole, when the block ends without an error.

    Args:
        source: The columns that are kept: see :func:`kept_columns`.
        tasks: In the order of the logits.
        version: Of the teacher.
    """
    added = [*(pa.field(f"teacher_{task}", pa.float32()) for task in tasks), pa.field(TEACHER_VERSION, pa.string())]
    schema = pa.schema([*source, *added])
    target = Path(part.target)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            yield PartWriter(writer, schema, len(tasks), version)
        fsync(partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def kept_columns(source: pa.Schema, tasks: tuple[str, ...]) -> pa.Schema:
    """The columns of the source without an earlier teacher's."""
    dropped = {TEACHER_VERSION, *(f"teacher_{task}" for task in tasks)}
    return pa.schema([field for field in source if field.name not in dropped])
