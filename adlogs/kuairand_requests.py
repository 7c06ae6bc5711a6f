"""The `requests/` rows of the converted log: profile, context, statistics of the past and three histories.

Letters: R requests.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.kuairand_columns import TIMESTAMP, constant, floats, small_ints
from adlogs.kuairand_histories import KINDS, Histories
from adlogs.kuairand_items import event_columns
from adlogs.kuairand_rows import Catalogue, Impressions
from adlogs.kuairand_source import USER_CODES, USER_COUNTS, USER_TEXTS
from adlogs.kuairand_statistics import PastStatistics

QUERY_STATISTICS = ("user", "user_tab", "tab", "tab_hour")
_UNKNOWN_CODE = -124  # of is_live_streamer


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the rows of a log are made from.

    Args:
        users: The user table as published.
        catalogue: The videos.
        statistics: Of the past.
        labels_as_of_us: UTC time of the last outcome, microseconds.
    """

    users: pa.Table
    catalogue: Catalogue
    statistics: PastStatistics
    labels_as_of_us: int


def requests_table(context: Context, rows: Impressions, histories: Histories, ids: pa.Array) -> pa.Table:
    """Build the rows of R requests.

    Args:
        context: Users, videos, statistics.
        rows: One impression of each request; its outcomes are not read.
        histories: Of the same R.
        ids: Request ids, text [R].
    """
    statistics = context.statistics
    who = {"user": rows.user, "tab": rows.tab, "hour": rows.hour}
    past = statistics.columns(QUERY_STATISTICS, statistics.snapshot(rows.day), **who)
    columns = {
        "request_id": ids,
        "event_time": pa.array(rows.time_ms * 1000, TIMESTAMP),
        "scenario": constant("standard", len(rows)),
        "labels_as_of": pa.array(np.full(len(rows), context.labels_as_of_us), TIMESTAMP),
        "tab": small_ints(rows.tab),
        "hour": small_ints(rows.hour),
        **profile_columns(context.users, rows.user),
        **{name: floats(values) for name, values in past.items()},
        **_history_sizes(rows, histories),
    }
    for kind in KINDS:
        columns |= event_columns(kind, histories, context.catalogue)
    return pa.table(columns)


def profile_columns(users: pa.Table, user: np.ndarray) -> dict[str, pa.Array]:
    """The columns of the user table for R requests; the code -124 means unknown and becomes null."""
    row = pa.array(user)
    columns = {"user_id": users["user_id"].combine_chunks().take(row)}
    for name in USER_TEXTS:
        columns[name] = users[name].combine_chunks().dictionary_encode().take(row)
    for name in USER_CODES:
        codes = users[name].combine_chunks().cast(pa.int32())
        unknown = pc.equal(codes, _UNKNOWN_CODE)
        columns[name] = pc.if_else(unknown, pa.scalar(None, pa.int32()), codes).take(row)
    for name in USER_COUNTS:
        columns[name] = users[name].combine_chunks().cast(pa.float32()).take(row)
    return columns


def _history_sizes(rows: Impressions, histories: Histories) -> dict[str, pa.Array]:
    """How long the histories are and how old; the age is null where there is none."""
    sizes = {kind: histories.num_events(kind).astype(np.float64) for kind in KINDS}
    hours = (rows.time_ms - histories.last_ms) / 3_600_000
    return {
        "history_length": floats(histories.length),
        "history_age_hours": floats(np.where(histories.last_ms < 0, np.nan, hours)),
        "history_likes": floats(sizes["like"]),
        "history_long_watches": floats(sizes["long_watch"]),
        "history_like_rate": floats((sizes["like"] + 0.3) / (histories.length + 15.0)),
        "history_long_rate": floats((sizes["long_watch"] + 2.0) / (histories.length + 5.0)),
    }
