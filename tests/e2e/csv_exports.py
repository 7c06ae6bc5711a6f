"""Logs as somebody else's CSV files: other names, other formats, columns that are known only afterwards.

Letters: B rows.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

IMPRESSIONS = {
    "time_ms": "shown_at_ms",
    "user_id": "viewer",
    "video_id": "clip",
    "tab": "surface",
    "hourmin": "clock",
    "is_click": "clicked",
    "conv_engage": "engaged",
    "play_time_ms": "watched_ms",
    "profile_stay_time": "profile_ms",
}
"""Names of the real log, and those under which it is written; the last two are outcomes in disguise."""

ITEMS = {
    "video_id": "clip",
    "author_id": "maker",
    "tag": "topics",
    "video_duration": "length_ms",
    "server_width": "width",
    "server_height": "height",
    "music_id": "song",
}
HISTORIES = {"watch_seq": "watched", "like_seq": "liked", "long_watch_seq": "finished"}


def write_real_log(source: Path, out: Path, *, every: int = 1) -> None:
    """Write the real log as four CSV files: impressions, viewers, clips and histories.

    Args:
        source: Folder of its Parquet files.
        out: Folder to make.
        every: Of the users, one in so many.
    """
    out.mkdir(parents=True)
    shown = pq.read_table(source / "kuairand_impressions.parquet")
    shown = shown.filter(pa.array(np.asarray(shown["user_id"]) % every == 0))
    users = pc.unique(shown["user_id"])
    csv.write_csv(_renamed(shown.select(list(IMPRESSIONS)), IMPRESSIONS), out / "impressions.csv")
    profiles = pq.read_table(source / "kuairand_users.parquet")
    profiles = profiles.filter(pc.is_in(profiles["user_id"], value_set=users))
    names = {name: name.replace("onehot_feat", "code_").replace("_num", "s") for name in profiles.schema.names}
    csv.write_csv(_renamed(profiles, names | {"user_id": "viewer"}), out / "viewers.csv")
    csv.write_csv(_renamed(pq.read_table(source / "kuairand_items.parquet"), ITEMS), out / "clips.csv")
    histories = pq.read_table(source / "kuairand_user_sequences.parquet")
    histories = histories.filter(pc.is_in(histories["user_id"], value_set=users))
    columns = {"viewer": histories["user_id"], "num_watched": histories["history_len"]}
    columns |= {new: _joined(histories[old]) for old, new in HISTORIES.items()}
    csv.write_csv(pa.table(columns), out / "histories.csv")


def write_simulated_log(log: Path, out: Path, *, every: int = 1) -> None:
    """Write a simulated log as three CSV files: page views, served ads with outcomes, and creatives as they changed.

    Args:
        log: Directory of the log.
        out: Folder to make.
        every: Of the requests, one in so many.
    """
    out.mkdir(parents=True)
    requests = pq.read_table(log / "requests")
    requests = requests.take(pa.array(np.arange(0, len(requests), every)))
    ids = requests["request_id"].combine_chunks()
    views = requests.drop_columns(["labels_as_of", "scenario"])
    names = {"request_id": "page_view", "event_time": "viewed_at", "user_id": "member"}
    names |= {name: name.replace(".", "_") for name in views.schema.names if "." in name}
    csv.write_csv(_flat(_renamed(views, names)), out / "page_views.csv")
    candidates = pq.read_table(log / "candidates")
    candidates = candidates.filter(pc.is_in(candidates["request_id"], value_set=ids))
    clicked = np.nan_to_num(candidates["label_click"].to_numpy())
    served = candidates.select(
        ["request_id", "ad_id", "stage", "bid", "objective", "user_advertiser_clicks", "position"]
    )
    served = served.append_column("clicked", candidates["label_click"])
    served = served.append_column("converted", candidates["label_conversion"])
    served = served.append_column("seconds_on_site", pa.array(clicked * (10 + np.arange(len(clicked)) % 50)))
    csv.write_csv(_renamed(served, {"request_id": "page_view", "ad_id": "creative"}), out / "served.csv")
    ads = pq.read_table(log / "ads").drop_columns(["scenario"])
    ads = _renamed(ads, {"ad_id": "creative", "valid_from": "changed_at"})
    csv.write_csv(_flat(ads), out / "creatives.csv")


def _renamed(table: pa.Table, names: dict[str, str]) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.schema.names])


def _flat(table: pa.Table) -> pa.Table:
    """Lists as text, times as ISO 8601."""
    columns = {}
    for name in table.schema.names:
        column = table[name]
        if pa.types.is_list(column.type):
            column = _joined(column)
        elif pa.types.is_timestamp(column.type):
            column = _times(column.combine_chunks())
        columns[name] = column
    return pa.table(columns)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    values = whole.values
    texts = _times(values) if pa.types.is_timestamp(values.type) else values.cast(pa.string())
    return pc.binary_join(pa.ListArray.from_arrays(whole.offsets, texts, mask=whole.is_null()), "|")


def _times(times: pa.Array) -> pa.Array:
    return pc.strftime(times, format="%Y-%m-%dT%H:%M:%SZ")
