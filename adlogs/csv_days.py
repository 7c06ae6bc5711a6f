"""Makes requests, candidates and changes of ads out of the impressions of one day.

Letters: N impressions, R requests, A ads of the day.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import xxhash

from adlogs.evidence import codes_of
from adlogs.id_codes import repeats
from contracts.columns import instants


@dataclass(frozen=True)
class Requests:
    """Which impressions came together.

    Args:
        row: Position of the first impression of each request, in the order of time, int64 [R].
        of: Request of each impression, int64 [N].
        ids: string [R].
        times: Microseconds UTC of its earliest impression, int64 [R].
    """

    row: np.ndarray
    of: np.ndarray
    ids: pa.Array
    times: np.ndarray


def requests_of(rows: pa.Table) -> Requests:
    """Group the impressions of a day: by request_id; else by user and moment; else each is a request of its own.

    Example:
        >>> times = pa.array([2_000, 1_000, 2_000], pa.timestamp("us", "UTC"))
        >>> found = requests_of(pa.table({"event_time": times, "user_id": ["u", "v", "u"]}))
        >>> found.ids.to_pylist(), found.of.tolist()
        (['1-v', '2-u'], [1, 0, 1])
    """
    times = instants(rows["event_time"].combine_chunks())
    if "request_id" in rows.schema.names:
        texts = rows["request_id"].combine_chunks()
        codes = codes_of(texts)
        earliest = np.full(codes.max(initial=-1) + 1, np.iinfo(np.int64).max)
        np.minimum.at(earliest, codes, times)
        moment = earliest[codes]
    else:
        texts, moment = _moment_ids(rows, times), times
        codes = codes_of(texts)
    order = np.lexsort((np.arange(len(codes)), codes, moment))
    begins = np.concatenate([[True], np.diff(codes[order]) != 0]) if len(order) else np.zeros(0, bool)
    of = np.empty(len(order), np.int64)
    of[order] = np.cumsum(begins) - 1
    row = order[begins]
    return Requests(row, of, texts.take(pa.array(row)), moment[row])


def _moment_ids(rows: pa.Table, times: np.ndarray) -> pa.Array:
    """``<milliseconds>-<user>``, which sorts as time does; a row without user stands alone."""
    users: Sequence[str | None] = [None] * len(times)
    if "user_id" in rows.schema.names:
        users = rows["user_id"].cast(pa.string()).to_pylist()
    texts = []
    for place, (time, user) in enumerate(zip(times.tolist(), users, strict=True)):
        moment = str(time // 1000) if time % 1000 == 0 else f"{time // 1000}.{time % 1000:03d}"
        texts.append(f"{moment}-{user}" if user is not None else f"{moment}-row{place}")
    return pa.array(texts, pa.string())


def distinct_pairs(rows: pa.Table, requests: Requests, labels: Sequence[str]) -> np.ndarray:
    """Positions of the impressions to keep, in the order of requests: one an ad and request, that of most outcomes."""
    ads = codes_of(rows["ad_id"].combine_chunks())
    outcomes = np.zeros(rows.num_rows, np.int64)
    for name in labels:
        outcomes += rows[name].fill_null(0).to_numpy().astype(np.int64)
    order = np.lexsort((np.arange(rows.num_rows), -outcomes, ads, requests.of))
    kept = order[~repeats(requests.of[order], ads[order])]
    return kept[np.lexsort((kept, requests.of[kept]))]


def sampled_eligible(
    requests: Requests, ads: pa.Array, groups: tuple[np.ndarray, np.ndarray], begins: np.ndarray, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw other ads of the day for each request.

    Args:
        requests: R of them.
        ads: Ad of each impression, string [N].
        groups: Scenario code of each request, int64 [R], and of each impression, int64 [N]: ads stay in theirs.
        begins: When the first row of each impression's ad begins, microseconds UTC, int64 [N].
        count: Draws a request, before repeats, shown ads and ads that begin later are left out.
        seed: Of the draw.

    Returns:
        Request and an impression of the ad, of each pair; int64.
    """
    codes, random = codes_of(ads), np.random.default_rng(seed)
    shown = requests.of * (codes.max(initial=0) + 1) + codes
    found_requests, found_rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for group in np.unique(groups[0]).tolist():
        of_group = np.flatnonzero(groups[0] == group)
        candidates = np.flatnonzero(groups[1] == group)
        _, first = np.unique(codes[candidates], return_index=True)
        pool = candidates[first]
        drawn = pool[random.integers(0, len(pool), (len(of_group), count))]
        request, row = np.repeat(of_group, count), drawn.ravel()
        key = request * (codes.max(initial=0) + 1) + codes[row]
        kept = ~repeats(key) & ~np.isin(key, shown) & (begins[row] <= requests.times[request])
        found_requests.append(request[kept])
        found_rows.append(row[kept])
    return np.concatenate(found_requests), np.concatenate(found_rows)


@dataclass
class AdChanges:
    """Gives a row of ``ads/`` whenever the columns of an ad change; of each ad it keeps when it began, and one number.

    Args:
        columns: Those of the ad, ad_id left out.
    """

    columns: Sequence[str]
    _state: dict[str, int] = field(default_factory=dict)
    _begun: dict[str, int] = field(default_factory=dict)

    def begins(self, ads: pa.Array) -> np.ndarray:
        """When the first row of each ad begins, microseconds UTC; ``add`` has seen the ads."""
        encoded = ads.dictionary_encode()
        begun = np.array([self._begun[ad] for ad in encoded.dictionary.to_pylist()], np.int64)
        return begun[np.asarray(encoded.indices)]

    def add(self, rows: pa.Table) -> np.ndarray:
        """Positions of the impressions of a day at which an ad is new or has changed, in the order of time."""
        times, ads = instants(rows["event_time"].combine_chunks()), codes_of(rows["ad_id"].combine_chunks())
        values = _row_codes(rows.select(list(self.columns)))
        order = np.lexsort((np.arange(len(ads)), times, ads))
        last_of_moment = np.append((np.diff(ads[order]) != 0) | (np.diff(times[order]) != 0), True)[: len(order)]
        order = order[last_of_moment]
        same = (np.diff(ads[order]) == 0) & (np.diff(values[order]) == 0)
        order = order[np.concatenate([[True], ~same])[: len(order)]]
        kept = [
            row for row in order[np.argsort(times[order], kind="stable")].tolist() if self._is_new(rows, row, times)
        ]
        return np.array(kept, np.int64)

    def _is_new(self, rows: pa.Table, row: int, times: np.ndarray) -> bool:
        ad = rows["ad_id"][row].as_py()
        state = xxhash.xxh64_intdigest(repr([rows[name][row].as_py() for name in self.columns]).encode())
        if self._state.get(ad) == state:
            return False
        self._state[ad] = state
        self._begun.setdefault(ad, int(times[row]))
        return True


def _row_codes(table: pa.Table) -> np.ndarray:
    """A number for each distinct row, int64 [N]."""
    combined = np.zeros(table.num_rows, np.int64)
    for name in table.schema.names:
        codes = codes_of(table[name].combine_chunks())
        _, combined = np.unique(combined * (codes.max(initial=0) + 2) + codes + 1, return_inverse=True)
    return combined
