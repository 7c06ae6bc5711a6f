"""Adds to the candidates of each request other ads of its day, where requests and candidates are files apart.

A light ranker must also see what was not shown; of impressions adlogs/csv_days.py does the same. Memory holds the ids
of requests and ads, a moment a request, and the distinct ads of each day; candidates pass request by request.

Letters: N candidates, R requests of a slice, A ads, k draws a request.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from adlogs.csv_pools import chosen_from, latest
from adlogs.csv_spill import DAY_US
from adlogs.csv_stages import ELIGIBLE
from adlogs.id_codes import IdCodes, repeats
from adlogs.log_writer import LogWriter, PartWriter
from contracts.columns import instants
from contracts.progress import progress
from contracts.records import dataset_files

BATCH_ROWS = 131_072

Begins = Callable[[pa.Array], np.ndarray]
"""When the first row of each ad begins, microseconds UTC."""

_AD_BITS = 40
_AD_MASK = (1 << _AD_BITS) - 1
_STEP = np.uint64(0x9E3779B97F4A7C15)


class AdsOfDays:
    """Which ads stood among the candidates of each day and scenario: the pools that other ads are drawn from."""

    def __init__(self) -> None:
        self._requests, self._ads = IdCodes(), IdCodes()
        self._groups: dict[tuple[int, str], int] = {}
        self._times, self._group = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._seen = np.zeros(0, np.int64)  # group and ad in one number, sorted

    def add_requests(self, rows: pa.Table) -> None:
        """Note when requests were, and their day and scenario; of an id that comes again the first counts."""
        known = len(self._requests)
        codes = self._requests.add(rows["request_id"].combine_chunks())
        new = (codes >= known) & ~repeats(codes)
        moment = rows["ads_as_of" if "ads_as_of" in rows.schema.names else "event_time"].combine_chunks()
        times = instants(moment.fill_null(rows["event_time"].combine_chunks()))[new]
        keys = zip((times // DAY_US).tolist(), rows["scenario"].filter(pa.array(new)).to_pylist(), strict=True)
        groups = np.array([self._groups.setdefault(key, len(self._groups)) for key in keys], np.int64)
        self._waiting.append((times, groups))

    def add_candidates(self, rows: pa.Table) -> None:
        """Note which ads stood there on which day; all requests are known."""
        ads, request = self._ads.add(rows["ad_id"].combine_chunks()), self.requests_of(rows["request_id"])
        _, group = self._moments()
        known = request >= 0
        keys = (group[request[known]] << _AD_BITS) + ads[known]
        self._seen = np.unique(np.concatenate([self._seen, keys]))

    def pool(self, request: int) -> np.ndarray:
        """Numbers of all ads of a request's day and scenario, int64."""
        group = int(self._moments()[1][request])
        low, high = (np.searchsorted(self._seen, (group + step) << _AD_BITS) for step in (0, 1))
        return self._seen[low:high] & _AD_MASK

    def latest(self, count: int) -> np.ndarray:
        """Which requests get whole pools, bool by their number."""
        times, _ = self._moments()
        chosen = np.zeros(len(times), bool)
        chosen[latest(count, times)] = True
        return chosen

    def requests_of(self, ids: pa.ChunkedArray) -> np.ndarray:
        """The number of each request, int64; -1 of one that the requests lack."""
        return self._requests.find(ids.combine_chunks())

    def drawn(self, request: np.ndarray, ids: pa.Array, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw ads for requests, the same ones for the same id and pool, whatever comes beside it.

        Args:
            request: Their numbers, int64 [R], none -1.
            ids: Their ids, string [R].
            count: Draws a request, k.

        Returns:
            Position of the request and number of the ad, of each draw; int64 [R * k].
        """
        group = self._moments()[1][request]
        low, high = (np.searchsorted(self._seen, (group + step) << _AD_BITS) for step in (0, 1))
        texts = [xxhash.xxh64_intdigest(text.encode()) for text in ids.to_pylist()]
        seeds = np.array(texts, np.uint64)[:, None] + _STEP * np.arange(count, dtype=np.uint64)
        place = low[:, None] + (_mixed(seeds) % (high - low).astype(np.uint64)[:, None]).astype(np.int64)
        return np.repeat(np.arange(len(request)), count), self._seen[place.ravel()] & _AD_MASK

    def ads_of(self, ids: pa.ChunkedArray) -> np.ndarray:
        """The number of each ad, int64 [N]."""
        return self._ads.find(ids.combine_chunks())

    def ads(self) -> pa.Array:
        """Ids by number, string [A]."""
        return self._ads.texts()

    def times(self, request: np.ndarray) -> np.ndarray:
        """Microseconds UTC as of which requests saw ads, int64 [R]."""
        return self._moments()[0][request]

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        if self._waiting:
            parts = zip((self._times, self._group), *self._waiting, strict=True)
            self._times, self._group = (np.concatenate(column) for column in parts)
            self._waiting.clear()
        return self._times, self._group


def add_eligible(directory: Path, days: AdsOfDays, begins: Begins, count: int, whole: int, spill: Path) -> int:
    """Rewrite the candidates of a log with other ads behind those of each request; returns how many there are.

    Args:
        directory: Of the log; the candidates of a request follow one another.
        days: Has seen all requests and candidates.
        begins: Of the catalogue: an ad that begins after a request was not there.
        count: Draws a request, before repeats, ads that it has and ads that begin later are left out.
        whole: Requests that get all of them instead.
        spill: An empty directory on the same disk.
    """
    source, writer = directory / "candidates", LogWriter(spill)
    files = dataset_files(source)
    parts, added = PartWriter(writer, "candidates"), 0
    draw = _Draw(days, begins(days.ads()), count, days.latest(whole))
    with progress("Adding eligible ads", total=sum(pq.read_metadata(file).num_rows for file in files)) as advance:
        for rows in _whole_requests(files):
            extended = draw.extended(rows)
            added += extended.num_rows - rows.num_rows
            parts.add(extended)
            advance(rows.num_rows)
    parts.close()
    shutil.rmtree(source)
    (spill / "candidates").rename(source)
    return added


@dataclass(frozen=True)
class _Draw:
    """Extends candidates.

    Args:
        days: Their requests and pools.
        begins: Of each ad by its number, int64 [A].
        count: Draws a request.
        whole: Requests that get whole pools, bool by their number.
    """

    days: AdsOfDays
    begins: np.ndarray
    count: int
    whole: np.ndarray

    def extended(self, rows: pa.Table) -> pa.Table:
        """Candidates of whole requests, and behind those of each request its other ads as eligible."""
        run, first = _runs(rows["request_id"])
        request = self.days.requests_of(rows["request_id"].take(pa.array(first)))
        ads = self.days.ads_of(rows["ad_id"])
        drawn = self._drawn(rows, first, request, run * len(self.begins) + ads)
        whole = self._whole_pools(rows, first, request, ads)
        extra_run, ad = (np.concatenate(both) for both in zip(drawn, whole, strict=True))
        given = {
            "request_id": rows["request_id"].take(pa.array(first[extra_run])),
            "ad_id": self.days.ads().take(pa.array(ad)),
            "stage": pa.array([ELIGIBLE] * len(ad), pa.string()),
        }
        columns = [given.get(field.name, pa.nulls(len(ad), field.type)) for field in rows.schema]
        both = pa.concat_tables([rows, pa.table(columns, schema=rows.schema)])
        return both.take(pa.array(np.argsort(np.concatenate([run, extra_run]), kind="stable")))

    def _drawn(
        self, rows: pa.Table, first: np.ndarray, request: np.ndarray, has: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run and ad of each draw that counts; of a request that is not there verification tells."""
        named = np.flatnonzero((request >= 0) & ~self.whole[request])
        ids = rows["request_id"].take(pa.array(first[named])).combine_chunks()
        place, ad = self.days.drawn(request[named], ids, self.count)
        key = named[place] * len(self.begins) + ad
        has_begun = self.begins[ad] <= self.days.times(request[named])[place]
        kept = ~repeats(key) & ~np.isin(key, has) & has_begun
        return named[place[kept]], ad[kept]

    def _whole_pools(
        self, rows: pa.Table, first: np.ndarray, request: np.ndarray, own: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of requests that get whole pools; ``own``: number of the ad of each row, int64 [N]."""
        runs, ads, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], np.append(first[1:], len(rows))
        for run in np.flatnonzero((request >= 0) & self.whole[request]).tolist():
            pool = self.days.pool(int(request[run]))
            pool = pool[self.begins[pool] <= self.days.times(request[run : run + 1])]
            pool = pool[~np.isin(pool, own[first[run] : ends[run]])]
            ads.append(chosen_from(pool, rows["request_id"][int(first[run])].as_py()))
            runs.append(np.full(len(ads[-1]), run))
        return np.concatenate(runs), np.concatenate(ads)


def _whole_requests(files: list[str]) -> Iterator[pa.Table]:
    """Stream candidates so that no request is divided between two tables."""
    held: pa.Table | None = None
    for file in files:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS):
                rows = pa.Table.from_batches([batch])
                rows = rows if held is None else pa.concat_tables([held, rows])
                last = int(_runs(rows["request_id"])[1][-1])
                held = rows.slice(last)
                if last:
                    yield rows.slice(0, last).combine_chunks()
    if held is not None:
        yield held.combine_chunks()


def _runs(ids: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Of rows, which run of equal ids each belongs to, int64 [N], and where each run begins, int64 [R]."""
    codes = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    begins = np.diff(codes, prepend=-1) != 0
    return np.cumsum(begins) - 1, np.flatnonzero(begins)


def _mixed(seeds: np.ndarray) -> np.ndarray:
    """SplitMix64 of each number (Steele et al. 2014, "Fast splittable pseudorandom number generators"); uint64."""
    values = (seeds ^ (seeds >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
