"""Scores a whole log with a sealed heavy bundle: the teacher columns that distillation reads. Needs no torch."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.artifact import file_lock, file_sha256
from contracts.bundle import Bundle
from contracts.errors import AdsieveError, InputError
from contracts.parquet import readable, sound_batches
from contracts.progress import progress
from contracts.records import LogPaths, dataset_files
from heavy_ranker.serving import HeavyServing
from modeling.examples import Examples, encode_log

ROWS_PER_CALL = 1024
"""Pairs that one call of the ads' graph takes; more only adds memory traffic."""

SCORED_BY = b"adsieve.scored_by"
TEACHER_VERSION = "teacher_version"
_CACHE = ".examples"
_ROWS_WRITTEN_AT_ONCE = 131_072


@dataclass(frozen=True)
class ScoreReport:
    """What a call did: parts written now and kept from before, rows read, and rows that got scores."""

    teacher_version: str
    parts_written: int
    parts_kept: int
    rows: int
    rows_scored: int


@dataclass(frozen=True)
class _Part:
    """One source file and its scored copy; ``first_row`` is its position in the whole dataset."""

    source: str
    target: Path
    first_row: int
    num_rows: int
    signature: bytes


def score_log(
    bundle: Bundle,
    log: LogPaths,
    out: Path,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    threads: int = 2,
) -> ScoreReport:
    """Write ``out/candidates``: the log's candidates with ``teacher_TASK`` logits and ``teacher_version`` beside.

    One part a source file, each written whole. A call that was interrupted goes on with the parts that are missing.
    Rows outside the window, and those whose ad is not in ``ads/`` at the time, keep null scores.

    Args:
        bundle: Of kind ``heavy``.
        log: Its candidates are sorted by request.
        out: Directory for the scored copy.
        start: Only requests not before this time are scored.
        end: Only requests before this time are scored.
        threads: Of the graphs.

    Raises:
        InputError: ``out`` holds parts of another bundle, window or source.
    """
    directory = out / "candidates"
    directory.mkdir(parents=True, exist_ok=True)
    with file_lock(directory):  # two calls at once would write the same files; the second finds what the first wrote
        return _score_missing(bundle, log, out, start, end, threads)


def _score_missing(
    bundle: Bundle, log: LogPaths, out: Path, start: datetime | None, end: datetime | None, threads: int
) -> ScoreReport:
    directory = out / "candidates"
    parts = _parts(log, directory, f"{bundle.manifest.version} from {start} to {end}")
    missing = [part for part in parts if not _is_done(part)]
    scored = 0
    if missing:
        examples = encode_log(bundle.schema, log, out / _CACHE, teacher=False, labels=False, start=start, end=end)
        scorer = PairScorer(HeavyServing.load(bundle, threads=threads), examples)
        with progress("Scoring candidates", total=sum(part.num_rows for part in missing)) as advance:
            for part in missing:
                logits = scorer.logits(part.first_row, part.num_rows)
                _write_part(part, logits, bundle.schema.tasks, bundle.manifest.version)
                scored += int((~np.isnan(logits[:, 0])).sum())
                advance(part.num_rows)
    shutil.rmtree(out / _CACHE, ignore_errors=True)
    return ScoreReport(
        teacher_version=bundle.manifest.version,
        parts_written=len(missing),
        parts_kept=len(parts) - len(missing),
        rows=sum(part.num_rows for part in missing),
        rows_scored=scored,
    )


class PairScorer:
    """Per-impression logits of the pairs of a log, each request encoded once.

    Args:
        serving: The bundle's graphs.
        examples: All pairs of the log, in its order.
    """

    def __init__(self, serving: HeavyServing, examples: Examples) -> None:
        self._serving = serving
        self._examples = examples
        self._positions = np.asarray(examples.positions["candidates"])

    def logits(self, first_row: int, num_rows: int) -> np.ndarray:
        """float32 [num_rows, K] for rows of ``candidates/`` from ``first_row`` on; NaN for those not among the pairs.

        Raises:
            AdsieveError: The model gives a logit that is not finite.
        """
        logits = np.full((num_rows, len(self._serving.tasks)), np.nan, np.float32)
        begin, end = np.searchsorted(self._positions, [first_row, first_row + num_rows])
        for pairs in whole_requests(np.asarray(self._examples.request_row[begin:end]), ROWS_PER_CALL):
            rows = np.arange(begin + pairs.start, begin + pairs.stop)
            logits[self._positions[rows] - first_row] = self._score(rows)
        return logits

    def _score(self, rows: np.ndarray) -> np.ndarray:
        examples, serving = self._examples, self._serving
        requests, request_index = np.unique(examples.request_row[rows], return_inverse=True)
        state = serving.encode_request(examples.query.take(requests))
        calls = []
        for start in range(0, len(rows), ROWS_PER_CALL):
            at = slice(start, start + ROWS_PER_CALL)
            pair = None if examples.pair is None else examples.pair.take(rows[at])
            calls.append(serving.score(state, examples.ad.take(examples.ad_row[rows[at]]), pair, request_index[at]))
        logits = np.concatenate(calls)
        if not np.isfinite(logits).all():
            raise AdsieveError(
                f"the heavy ranker gave a logit that is not finite between pairs {rows[0]} and {rows[-1]}"
            )
        return logits


def whole_requests(request_row: np.ndarray, size: int) -> Iterator[slice]:
    """Divide pairs sorted by request into slices that end where a request ends, of ``size`` pairs or little more.

    Example:
        >>> list(whole_requests(np.array([0, 0, 0, 1, 1, 2]), size=2))
        [slice(0, 3, None), slice(3, 5, None), slice(5, 6, None)]
    """
    ends = np.append(np.flatnonzero(np.diff(request_row)) + 1, len(request_row))
    start = 0
    for end in ends.tolist():
        if end - start >= size or end == len(request_row) > start:
            yield slice(start, end)
            start = end


def _parts(log: LogPaths, directory: Path, call: str) -> list[_Part]:
    parts, first_row = [], 0
    for index, source in enumerate(dataset_files(log.candidates)):
        with readable(source):
            num_rows = pq.ParquetFile(source).metadata.num_rows
        name = f"{index:05d}-{Path(source).stem}.parquet"
        signature = f"{call}, {num_rows} rows with sha256 {file_sha256(Path(source))[:12]}".encode()
        parts.append(_Part(source, directory / name, first_row, num_rows, signature))
        first_row += num_rows
    strangers = {path.name for path in directory.glob("*.parquet")} - {part.target.name for part in parts}
    if strangers:
        raise InputError(
            f"{directory}: holds {sorted(strangers)[0]}, which no source file explains; choose another --out"
        )
    return parts


def _is_done(part: _Part) -> bool:
    """Whether the part is there; one that another call wrote is refused, so that no two teachers mix."""
    if not part.target.exists():
        return False
    with readable(part.target):
        found = (pq.read_schema(part.target).metadata or {}).get(SCORED_BY, b"another program")
    if found != part.signature:
        raise InputError(
            f"{part.target}: was scored by {found.decode()}, this call is {part.signature.decode()}; "
            "choose another --out"
        )
    return True


def _write_part(part: _Part, logits: np.ndarray, tasks: tuple[str, ...], version: str) -> None:
    source = pq.ParquetFile(part.source)
    names = [f"teacher_{task}" for task in tasks]
    kept = [field for field in source.schema_arrow if field.name not in {*names, TEACHER_VERSION}]
    added = [*(pa.field(name, pa.float32()) for name in names), pa.field(TEACHER_VERSION, pa.string())]
    schema = pa.schema([*kept, *added], metadata={SCORED_BY: part.signature})
    partial = part.target.with_name(f".{part.target.name}.partial")
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        start = 0
        batches = source.iter_batches(_ROWS_WRITTEN_AT_ONCE, columns=[field.name for field in kept])
        for batch in sound_batches(batches, source=part.source):
            own = logits[start : start + batch.num_rows]
            unscored = np.isnan(own[:, 0])
            scores = [pa.array(own[:, task], pa.float32(), mask=unscored) for task in range(len(tasks))]
            versions = pa.array([version]).take(pa.array(np.zeros(len(own), np.int8), mask=unscored))
            writer.write_batch(pa.record_batch([*batch.columns, *scores, versions], schema=schema))
            start += batch.num_rows
    os.replace(partial, part.target)
