"""Whole pools: for some of the latest requests all ads of the day are eligible, so that recall can be measured.

Letters: N impressions, R requests, P ads of a pool.
"""

import numpy as np
import pyarrow as pa
import xxhash

from adlogs.csv_days import Requests
from adlogs.evidence import codes_of
from adlogs.log_span import STUDENT_SHARE

POOL_ADS = 1_000
"""Ads that join a request at most; of so many or more a student is judged by `adsieve distill`."""


def spread(count: int, among: int) -> np.ndarray:
    """Positions of ``count`` things of ``among`` in order, evenly; all where there are no more.

    Example:
        >>> spread(3, 9).tolist(), spread(5, 2).tolist()
        ([0, 4, 8], [0, 1])
    """
    return np.unique(np.linspace(0, max(among - 1, 0), min(count, among)).round().astype(np.int64))


def latest(count: int, times: np.ndarray) -> np.ndarray:
    """Which requests get whole pools: ``count`` of those that judge the student, spread over their time; int64.

    Args:
        count: Requests to choose.
        times: Of all requests, int64 [R].
    """
    order = np.argsort(times, kind="stable")[int(STUDENT_SHARE * len(times)) :]
    return order[spread(count, len(order))]


def latest_of_days(count: int, rows: dict[int, int]) -> dict[int, tuple[float, int]]:
    """The same where days come one after another: of each day, from which share of it on, and how many requests.

    Args:
        count: Requests to choose in all.
        rows: Of each day.

    Example:
        >>> latest_of_days(10, {0: 70, 1: 20, 2: 10})
        {1: (0.5, 5), 2: (0.0, 5)}
    """
    found, before, total = {}, 0, sum(rows.values())
    for day, number in sorted(rows.items()):
        share = min(max((STUDENT_SHARE * total - before) / number, 0.0), 1.0)
        if share < 1.0:
            found[day] = (round(share, 9), round(count * number * (1 - share) / ((1 - STUDENT_SHARE) * total)))
        before += number
    return found


def chosen_from(pool: np.ndarray, request_id: str) -> np.ndarray:
    """At most ``POOL_ADS`` of a pool, int64 [P], in its order; the same ones for the same request."""
    if len(pool) <= POOL_ADS:
        return pool
    random = np.random.default_rng(xxhash.xxh64_intdigest(request_id.encode()))
    return pool[np.sort(random.permutation(len(pool))[:POOL_ADS])]


def whole_pools(
    requests: Requests, ads: pa.Array, groups: tuple[np.ndarray, np.ndarray], begins: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All other ads of the day for some requests of it.

    Args:
        requests: R of them.
        ads: Ad of each impression, string [N].
        groups: Scenario code of each request, int64 [R], and of each impression, int64 [N]: ads stay in theirs.
        begins: When the first row of each impression's ad begins, microseconds UTC, int64 [N].
        chosen: Requests that get them.

    Returns:
        Request and an impression of the ad, of each pair; int64.
    """
    codes = codes_of(ads)
    found_requests, found_rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for request in chosen.tolist():
        rows = np.flatnonzero((groups[1] == groups[0][request]) & (begins <= requests.times[request]))
        pool = rows[np.sort(np.unique(codes[rows], return_index=True)[1])]
        shown = codes[requests.of == request]
        pool = chosen_from(pool[~np.isin(codes[pool], shown)], requests.ids[request].as_py())
        found_requests.append(np.full(len(pool), request))
        found_rows.append(pool)
    return np.concatenate(found_requests), np.concatenate(found_rows)
