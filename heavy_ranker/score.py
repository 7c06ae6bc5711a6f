"""Scores a whole log with sealed heavy bundles: the teacher columns that distillation reads. Needs no torch.

Requests and ads are encoded once on disk (score_store.py); candidates pass through slice by slice (score_rows.py) into
parts that appear whole (score_parts.py), in this process or in several (score_workers.py).
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import add
from pathlib import Path

from contracts.artifact import file_lock
from contracts.progress import Advance, progress
from contracts.records import LogPaths
from heavy_ranker.score_parts import Counts, Part, counts_of, plan_parts
from heavy_ranker.score_rows import PartScorer
from heavy_ranker.score_store import ScoreStore, prepare
from heavy_ranker.score_workers import Job, run_workers
from heavy_ranker.series import Teacher

_STORE = ".encoded"


@dataclass(frozen=True)
class ScoreReport:
    """What a scored copy holds: parts written now and kept from before, and what became of the rows of all of them.

    The counts are those of :class:`~heavy_ranker.score_parts.Counts`.
    """

    teacher_version: str
    parts_written: int
    parts_kept: int
    rows: int
    rows_scored: int
    rows_seen: int
    rows_outside: int
    rows_no_ad: int
    rows_no_member: int


def score_log(
    teacher: Teacher,
    log: LogPaths,
    out: Path,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    threads: int = 2,
    workers: int = 1,
) -> ScoreReport:
    """Write ``out/candidates``: the log's candidates with ``teacher_TASK`` logits and ``teacher_version`` beside.

    A part for each source file, or for each million rows of one, written whole. A call that was interrupted goes on
    with the parts that are missing. Rows outside the window, those whose ad is not in ``ads/`` at the time, and those
    for which a series has no member keep null scores.

    Args:
        teacher: A bundle, or a series whose members score the rows that they have not trained on.
        log: Its candidates are sorted by request.
        out: Directory for the scored copy.
        start: Only requests not before this time are scored.
        end: Only requests before this time are scored.
        threads: Of the graphs, in each process.
        workers: Processes that score; the rows are the same for any number of them.

    Raises:
        InputError: ``out`` holds parts of another teacher, window or source.
        AdsieveError: A worker ended before its part was done; the parts of the others are kept.
    """
    directory = out / "candidates"
    directory.mkdir(parents=True, exist_ok=True)
    with file_lock(directory):  # two calls at once would write the same files; the second finds what the first wrote
        parts = plan_parts(log, directory, f"{teacher.version} from {start} to {end}")
        missing = [part for part in parts if counts_of(part) is None]
        if missing:
            store = prepare(teacher, log, out / _STORE, start=start, end=end)
            job = Job(teacher=teacher, log=log, store=str(store), threads=threads)
            total = sum(part.rows for part in missing)
            with progress("Scoring candidates", total=total) as advance:
                _score(job, missing, workers, _with_rate(advance))
        shutil.rmtree(out / _STORE, ignore_errors=True)
        return _report(teacher, len(missing), parts)


def _score(job: Job, parts: list[Part], workers: int, advance: Advance) -> None:
    if workers > 1 and len(parts) > 1:
        run_workers(job, parts, workers, advance)
        return
    scorer = PartScorer(job.teacher, ScoreStore(Path(job.store), job.log), threads=job.threads)
    for part in parts:
        scorer.score(part, advance)


def _with_rate(advance: Advance) -> Callable[..., None]:
    """Note the rows a second since now beside the progress."""
    began, done = time.monotonic(), 0

    def advance_rows(amount: int, *, note: str = "") -> None:
        nonlocal done
        done += amount
        advance(amount, note=f"{done / (time.monotonic() - began):,.0f} rows/s")

    return advance_rows


def _report(teacher: Teacher, written: int, parts: list[Part]) -> ScoreReport:
    counts = reduce(add, (counts for part in parts if (counts := counts_of(part))), Counts())
    return ScoreReport(
        teacher_version=teacher.version,
        parts_written=written,
        parts_kept=len(parts) - written,
        rows=counts.rows,
        rows_scored=counts.scored,
        rows_seen=counts.seen,
        rows_outside=counts.outside,
        rows_no_ad=counts.no_ad,
        rows_no_member=counts.no_member,
    )
