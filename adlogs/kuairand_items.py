"""The `ads/` rows of the converted log, and what an event of a history says of its video.

Letters: V videos, E events.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.kuairand_columns import TIMESTAMP, constant, floats, lists
from adlogs.kuairand_histories import Histories
from adlogs.kuairand_rows import UNKNOWN_TAG, Catalogue, day_start_us
from adlogs.kuairand_statistics import PastStatistics

AD_STATISTICS = ("video", "author", "tag", "music")
MAIN_TABS = (0, 1, 2, 4, 6)  # nearly all impressions; each has a click rate of its own a video
_DURATION_EDGES_S = (0, 5, 8, 12, 18, 27, 40, 60, 90, 150, 300)


def item_columns(catalogue: Catalogue) -> dict[str, pa.Array]:
    """What does not change about the V videos."""
    items = catalogue.table.combine_chunks()
    column = {name: items[name].combine_chunks() for name in items.schema.names}
    width, height = (np.asarray(column[name].cast(pa.float64())) for name in ("server_width", "server_height"))
    return {
        "ad_id": column["video_id"].cast(pa.string()),
        "scenario": constant("standard", len(items)),
        "status": constant("active", len(items)),
        "advertiser_id": column["author_id"].cast(pa.string()),
        "video_id": column["video_id"],
        "author_id": column["author_id"],
        "music_id": _null_where(column["music_id"], 0),
        "music_type": column["music_type"].cast(pa.int8()),
        "video_type": column["video_type"].dictionary_encode(),
        "upload_type": column["upload_type"].dictionary_encode(),
        "upload_dt": column["upload_dt"].dictionary_encode(),
        "tag": pc.split_pattern(_null_where(column["tag"], UNKNOWN_TAG), ","),
        "duration": duration_buckets(catalogue),
        "video_duration": column["video_duration"].cast(pa.float32()),
        "server_width": column["server_width"].cast(pa.float32()),
        "server_height": column["server_height"].cast(pa.float32()),
        "aspect_ratio": floats(width / np.where(height > 0, height, np.nan)),
    }


def duration_buckets(catalogue: Catalogue) -> pa.Array:
    """Number of the duration's interval, int8 [V], null where the duration is unknown."""
    milliseconds = catalogue.table["video_duration"].combine_chunks().cast(pa.float64())
    known = milliseconds.fill_null(0.0).to_numpy(zero_copy_only=False)
    buckets = np.searchsorted(_DURATION_EDGES_S, known / 1000, side="right").astype(np.int8)
    return pa.array(buckets, mask=milliseconds.is_null().to_numpy(zero_copy_only=False))


def ads_table(catalogue: Catalogue, statistics: PastStatistics, histories: Histories) -> pa.Table:
    """All rows: one a video from the first day on, and one a day on which its statistics changed."""
    fixed = pa.table(item_columns(catalogue))
    parts, previous = [], None
    for day in range(statistics.first_day, statistics.last_day + 1):
        values = _statistics_of(catalogue, statistics, histories, day)
        changed = np.ones(len(catalogue), bool) if previous is None else _differs(values, previous)
        table = fixed.filter(pa.array(changed))
        start = np.full(len(table), day_start_us(day))
        table = table.append_column("valid_from", pa.array(start, TIMESTAMP))
        for name, numbers in values.items():
            table = table.append_column(name, floats(numbers[changed]))
        parts.append(table)
        previous = values
    return pa.concat_tables(parts).unify_dictionaries()


def event_columns(kind: str, histories: Histories, catalogue: Catalogue) -> dict[str, pa.Array]:
    """``<kind>.<field>`` lists for each of R requests, oldest event first."""
    history = histories.by_kind[kind]
    lengths = history.stop - history.start
    before = np.cumsum(lengths) - lengths
    events = np.repeat(history.start - before, lengths) + np.arange(lengths.sum())
    row = pa.array(history.video[events])
    known_tags = pa.array([None if name == UNKNOWN_TAG else name for name in catalogue.tag_names])
    tags = pa.DictionaryArray.from_arrays(pa.array(catalogue.tag.astype(np.int32)), known_tags)
    fields = {
        "video_id": pa.array(catalogue.ids).take(row),
        "author_id": catalogue.table["author_id"].combine_chunks().take(row),
        "tag": tags.take(row).dictionary_decode(),
        "duration": duration_buckets(catalogue).take(row),
    }
    if histories.has_times:
        fields["time"] = pa.array(history.until_ms[events] * 1000, TIMESTAMP)
    return {f"{kind}.{name}": lists(values, lengths) for name, values in fields.items()}


def _statistics_of(
    catalogue: Catalogue, statistics: PastStatistics, histories: Histories, day: int
) -> dict[str, np.ndarray]:
    """Every statistic of the V videos as of a day."""
    snapshot = np.full(len(catalogue), day)
    video = np.arange(len(catalogue))
    values = statistics.columns(AD_STATISTICS, snapshot, video=video)
    for tab in MAIN_TABS:
        found = statistics.columns(("video_tab",), snapshot, video=video, tab=np.full(len(video), tab))
        values[f"video_tab{tab}_ctr"] = found["video_tab_ctr"]
    return values | _from_histories(catalogue, statistics, histories, day)


def _from_histories(
    catalogue: Catalogue, statistics: PastStatistics, histories: Histories, day: int
) -> dict[str, np.ndarray]:
    """What the histories before the log's second day say of each video and each tag; NaN on its first day."""
    limit_ms = day_start_us(statistics.first_day + 1) // 1000
    counts = {
        kind: np.bincount(found.video[found.until_ms < limit_ms], minlength=len(catalogue)).astype(np.float64)
        for kind, found in histories.by_kind.items()
    }
    by_tag = {kind: np.bincount(catalogue.tag, weights=found)[catalogue.tag] for kind, found in counts.items()}
    values = {"video_history_watches": counts["watch"]}
    for prefix, found in (("video_history", counts), ("tag_history", by_tag)):
        values[f"{prefix}_long_rate"] = (found["long_watch"] + 4.0) / (found["watch"] + 10.0)
        values[f"{prefix}_like_rate"] = (found["like"] + 0.5) / (found["watch"] + 20.0)
    unknown = day == statistics.first_day
    return {name: np.where(unknown, np.nan, found).astype(np.float32) for name, found in values.items()}


def _differs(values: dict[str, np.ndarray], previous: dict[str, np.ndarray]) -> np.ndarray:
    same = [(found == previous[name]) | (np.isnan(found) & np.isnan(previous[name])) for name, found in values.items()]
    return ~np.logical_and.reduce(same)


def _null_where(column: pa.Array, value: int | str) -> pa.Array:
    return pc.if_else(pc.equal(column, value), pa.scalar(None, column.type), column)
