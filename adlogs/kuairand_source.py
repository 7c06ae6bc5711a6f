"""Reads KuaiRand-Pure, from four Parquet files or from the published CSV layout, into the same tables.

Source: Gao et al. 2022, "KuaiRand: An Unbiased Sequential Recommendation Dataset with Randomly Exposed Videos", CIKM.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from contracts.errors import LogError
from contracts.records import INTEGER, NUMBER, TEXT, ColumnKind, read_table

PARQUET_FILES = {
    "impressions": "kuairand_impressions.parquet",
    "items": "kuairand_items.parquet",
    "users": "kuairand_users.parquet",
    "sequences": "kuairand_user_sequences.parquet",
}
CSV_EARLIER, CSV_LATER, CSV_RANDOM = (
    "log_standard_4_08_to_4_21_pure.csv",
    "log_standard_4_22_to_5_08_pure.csv",
    "log_random_4_22_to_5_08_pure.csv",
)
CSV_USERS, CSV_ITEMS = "user_features_pure.csv", "video_features_basic_pure.csv"

FIRST_DATE = 20220425  # of the fourteen days that the figures of this project are about

ENGAGEMENTS = ("is_like", "is_follow", "is_comment", "is_forward", "is_profile_enter")
_OUTCOMES = ("is_click", "long_view", *ENGAGEMENTS)
_IMPRESSION_KINDS: dict[str, ColumnKind] = {
    **dict.fromkeys(("time_ms", "hourmin", "user_id", "video_id", "tab"), INTEGER),
    **dict.fromkeys(_OUTCOMES, INTEGER),
}
_ITEM_KINDS: dict[str, ColumnKind] = {
    **dict.fromkeys(("video_id", "author_id", "music_id"), INTEGER),
    **dict.fromkeys(("video_type", "upload_dt", "upload_type", "tag"), TEXT),
    **dict.fromkeys(("video_duration", "server_width", "server_height", "music_type"), NUMBER),
}
USER_COUNTS = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
USER_TEXTS = ("user_active_degree", *(f"{name}_range" for name in USER_COUNTS))
USER_CODES = ("is_live_streamer", "is_video_author", *(f"onehot_feat{number}" for number in range(18)))
_USER_KINDS: dict[str, ColumnKind] = {
    "user_id": INTEGER,
    **dict.fromkeys((*USER_COUNTS, *USER_CODES), NUMBER),
    **dict.fromkeys(USER_TEXTS, TEXT),
}
_SEQUENCE_KINDS: dict[str, ColumnKind] = dict.fromkeys(("user_id", "history_len", "last_time_ms"), INTEGER)
SEQUENCE_COLUMNS = {"watch": "watch_seq", "like": "like_seq", "long_watch": "long_watch_seq"}

_CSV_TYPES = {INTEGER: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string()}


@dataclass(frozen=True, kw_only=True)
class Source:
    """The tables of the data set, columns named as published.

    Args:
        impressions: What was shown, in the order of the file.
        items: One row a video.
        users: One row a user.
        sequences: Each user's history from before the log; None where ``earlier`` gives it.
        earlier: Every known impression, those of ``impressions`` and random exposures included, with
            ``play_time_ms``; None where ``sequences`` gives the histories.
    """

    impressions: pa.Table
    items: pa.Table
    users: pa.Table
    sequences: pa.Table | None
    earlier: pa.Table | None


def read_source(path: Path) -> Source:
    """Read the folder that holds either layout.

    Raises:
        LogError: Neither layout is there, or a file lacks a column or has one of the wrong type.
    """
    if (path / PARQUET_FILES["impressions"]).is_file():
        return _read_parquet(path)
    if (path / CSV_LATER).is_file():
        return _read_csv_layout(path)
    raise LogError(
        f"{path}: expected a folder with {', '.join(PARQUET_FILES.values())}, or the published CSV layout "
        f"({CSV_EARLIER}, {CSV_LATER}, {CSV_RANDOM}, {CSV_USERS}, {CSV_ITEMS})",
        next_step="name the folder that holds these files; KuaiRand-Pure is at https://kuairand.com",
    )


def _read_parquet(path: Path) -> Source:
    files = {name: path / file for name, file in PARQUET_FILES.items()}
    sequences = read_table(files["sequences"], list(SEQUENCE_COLUMNS.values()), required=_SEQUENCE_KINDS)
    for name in SEQUENCE_COLUMNS.values():
        if name not in sequences.schema.names or not pa.types.is_list(sequences.schema.field(name).type):
            raise LogError(f"{files['sequences']}: column {name} is missing or no list, expected lists of video ids")
    return Source(
        impressions=read_table(files["impressions"], [], required=_IMPRESSION_KINDS),
        items=read_table(files["items"], [], required=_ITEM_KINDS),
        users=read_table(files["users"], [], required=_USER_KINDS),
        sequences=sequences,
        earlier=None,
    )


def _read_csv_layout(path: Path) -> Source:
    kinds = {**_IMPRESSION_KINDS, "date": INTEGER, "play_time_ms": INTEGER}
    earlier, later, random = (_read_csv(path / name, kinds) for name in (CSV_EARLIER, CSV_LATER, CSV_RANDOM))
    return Source(
        impressions=later.filter(pc.greater_equal(later["date"], FIRST_DATE)),
        items=_read_csv(path / CSV_ITEMS, _ITEM_KINDS),
        users=_read_csv(path / CSV_USERS, _USER_KINDS),
        sequences=None,
        earlier=pa.concat_tables([earlier, later, random]),
    )


def _read_csv(path: Path, kinds: dict[str, ColumnKind]) -> pa.Table:
    if not path.is_file():
        raise LogError(
            f"{path}: no such file; expected it beside {CSV_LATER}",
            next_step="name the folder that holds all files of KuaiRand-Pure",
        )
    convert = csv.ConvertOptions(
        include_columns=list(kinds),
        column_types={name: _CSV_TYPES[kind] for name, kind in kinds.items()},
        strings_can_be_null=True,
        null_values=["", "nan", "NaN"],
    )
    try:
        return csv.read_csv(path, convert_options=convert)
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise LogError(f"{path}: {error}") from error
