"""Turns KuaiRand-Pure, a real log of short-video recommendations, into the log datasets of this project.

Every impression was shown, so it is a winner; about ten other videos of its day join it as eligible, without labels.
A request is a user at a moment. Source: Gao et al. 2022, CIKM; data under CC BY-SA 4.0.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adlogs.kuairand_histories import Histories, histories_of
from adlogs.kuairand_items import ads_table
from adlogs.kuairand_pairs import PairBuilder, candidates_table
from adlogs.kuairand_pools import choose_full, unshown
from adlogs.kuairand_requests import Context, requests_table
from adlogs.kuairand_rows import Impressions, catalogue_of, day_start_us, impressions_of
from adlogs.kuairand_source import read_source
from adlogs.kuairand_split import Split, iso, split_by_time
from adlogs.kuairand_statistics import PastStatistics
from adlogs.publish import published_directory
from contracts.artifact import write_json
from contracts.errors import LogError
from contracts.progress import progress

FULL_POOL = 1_000
_ROW_GROUPS = {"requests": 4_096, "candidates": 65_536, "ads": 16_384}


@dataclass(frozen=True, kw_only=True)
class _Log:
    """Everything that the days are written from; one row an impression, histories and ``full`` likewise."""

    context: Context
    rows: Impressions
    histories: Histories
    full: np.ndarray
    split: Split
    num_dropped: int


def convert_kuairand(
    source: Path, out: Path, *, seed: int = 0, full_requests: int = 0, full_pool: int = FULL_POOL
) -> dict[str, Any]:
    """Write requests/, candidates/, ads/ and split.json under ``out``, which appears by one rename.

    Args:
        source: Folder with the four Parquet files or the published CSV layout.
        out: Directory to create.
        seed: Of the samples of eligible videos and of full requests.
        full_requests: Requests of the test part, drawn at random, whose eligible videos are a whole pool instead of a
            sample: those shown most often on the day.
        full_pool: Videos of such a pool.

    Returns:
        What split.json holds: ``train_until``, ``validate_from`` (ISO 8601 UTC, each the first moment of the later
        part), ``seed`` and ``counts``.

    Raises:
        LogError: The source is incomplete, has fewer requests in its test part, or ``out`` exists already.
    """
    log = _read(Path(source), full_requests, seed)
    with published_directory(Path(out)) as directory:
        ads = ads_table(log.context.catalogue, log.context.statistics, log.histories)
        _write(directory, "ads", "ads", ads)
        counts = _Counts()
        days = np.unique(log.rows.day)
        with progress("Converting", total=len(days), unit="days") as advance:
            for day in days.tolist():
                counts.add(_write_day(directory, log, day, full_pool, seed))
                advance(1)
        summary = _summary(log, counts, len(ads), seed)
        write_json(directory / "split.json", summary)
    return summary


def _read(source: Path, full_requests: int, seed: int) -> _Log:
    """Read the source; the split is fixed on all rows, then rows not later than their user's history go."""
    tables = read_source(source)
    catalogue = catalogue_of(tables.items)
    users = tables.users["user_id"].to_numpy()
    rows = impressions_of(tables.impressions, tables.users, catalogue)
    if not len(rows):
        raise LogError(f"{source}: holds no impression of the days that are converted")
    split = split_by_time(rows.time_ms)
    histories = histories_of(tables, users, catalogue, rows.user, rows.time_ms)
    later = np.flatnonzero(rows.time_ms > histories.last_ms)
    num_dropped = len(rows) - len(later)
    rows, histories = rows.take(later), histories.take(later)
    context = Context(
        users=tables.users,
        catalogue=catalogue,
        statistics=PastStatistics(rows.take(rows.time_ms < split.train_until_ms), catalogue),
        labels_as_of_us=day_start_us(int(rows.day.max()) + 1),
    )
    full = choose_full(rows, rows.time_ms >= split.train_until_ms, full_requests, seed)
    return _Log(context=context, rows=rows, histories=histories, full=full, split=split, num_dropped=num_dropped)


def _write_day(directory: Path, log: _Log, day: int, full_pool: int, seed: int) -> "_Counts":
    """Write the requests and candidates of one local day."""
    of_day = np.flatnonzero(log.rows.day == day)
    shown = log.rows.take(of_day)
    first, shown_request = _requests_of(shown)
    requests, histories = shown.take(first), log.histories.take(of_day[first])
    ids = _request_ids(log.context, requests)
    random = np.random.default_rng([seed, day])
    eligible = unshown(shown, shown_request, log.full[of_day[first]], full_pool, random)
    builder = PairBuilder(log.context, requests, histories)
    stem = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y-%m-%d")
    _write(directory, "requests", stem, requests_table(log.context, requests, histories, ids))
    _write(directory, "candidates", stem, candidates_table(builder, shown, shown_request, eligible, ids))
    return _Counts(requests=len(first), eligible=len(eligible[0]))


def _requests_of(shown: Impressions) -> tuple[np.ndarray, np.ndarray]:
    """First impression of each (time, user), in the order of time, and the request of each impression."""
    keys = np.stack([shown.time_ms, shown.user])
    _, first, request = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return first, request.reshape(-1)


def _request_ids(context: Context, requests: Impressions) -> pa.Array:
    """``<time_ms>-<user_id>``: ids that sort as the requests do in time."""
    users = context.users["user_id"].to_numpy()[requests.user]
    return pa.array(
        [f"{moment}-{user}" for moment, user in zip(requests.time_ms.tolist(), users.tolist(), strict=True)]
    )


def _write(directory: Path, dataset: str, stem: str, table: pa.Table) -> None:
    (directory / dataset).mkdir(exist_ok=True)
    path = directory / dataset / f"{stem}.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=_ROW_GROUPS[dataset])


@dataclass
class _Counts:
    requests: int = 0
    eligible: int = 0

    def add(self, other: "_Counts") -> None:
        self.requests += other.requests
        self.eligible += other.eligible


def _summary(log: _Log, counts: _Counts, num_ads_rows: int, seed: int) -> dict[str, Any]:
    time_ms, split = log.rows.time_ms, log.split
    is_test, is_late = time_ms >= split.train_until_ms, time_ms >= split.validate_from_ms
    return {
        "train_until": iso(split.train_until_ms),
        "validate_from": iso(split.validate_from_ms),
        "seed": seed,
        "counts": {
            "impressions": len(time_ms),
            "train": int((~is_late).sum()),
            "validation": int((is_late & ~is_test).sum()),
            "test": int(is_test.sum()),
            "dropped": log.num_dropped,
            "requests": counts.requests,
            "eligible": counts.eligible,
            "ads_rows": num_ads_rows,
        },
    }
