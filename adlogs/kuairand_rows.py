"""The data set as arrays: who saw which video when, by row numbers of the user and item tables.

Letters: N impressions, V videos, U users.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.kuairand_source import ENGAGEMENTS
from contracts.errors import LogError

UNKNOWN_TAG = "unknown"
NUM_TABS, NUM_HOURS = 32, 24  # scenes of the app have numbers below the first
_DAY_MS = 24 * 3_600_000
_ZONE_MS = 8 * 3_600_000  # the platform's days begin at midnight in UTC+8


def local_day(time_ms: np.ndarray) -> np.ndarray:
    """Days since 1970 on the platform's clock, int64."""
    return (time_ms + _ZONE_MS) // _DAY_MS


def day_start_us(day: int) -> int:
    """Microseconds UTC at which a local day begins."""
    return (int(day) * _DAY_MS - _ZONE_MS) * 1000


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The videos, and what they share; each code array is int64 [V].

    Args:
        ids: Video ids, int64 [V].
        author: Code of the author.
        tag: Code of the first tag, into ``tag_names``; a video without one has the code of ``unknown``.
        music: Code of the music.
        tag_names: Distinct first tags.
        num_authors: Distinct authors.
        table: The items as published.
    """

    ids: np.ndarray
    author: np.ndarray
    tag: np.ndarray
    music: np.ndarray
    tag_names: tuple[str, ...]
    num_authors: int
    table: pa.Table

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class Impressions:
    """What was shown, in the order of time; arrays [N].

    Args:
        time_ms: UTC.
        day: Local day.
        hour: Local hour as logged.
        tab: Scene of the app.
        user: Row in the user table.
        video: Row in the catalogue.
        click: 0 or 1, as the other outcomes.
        engage: A click and a like, follow, comment, forward or profile visit.
        long_view: Watched for long.
    """

    time_ms: np.ndarray
    day: np.ndarray
    hour: np.ndarray
    tab: np.ndarray
    user: np.ndarray
    video: np.ndarray
    click: np.ndarray
    engage: np.ndarray
    long_view: np.ndarray

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, rows: np.ndarray) -> "Impressions":
        """The rows at these positions, or where a bool mask is true."""
        return Impressions(**{name: values[rows] for name, values in vars(self).items()})


def catalogue_of(items: pa.Table) -> Catalogue:
    """Number the videos and what they share."""
    tags = pc.fill_null(pc.list_element(pc.split_pattern(pc.fill_null(items["tag"], UNKNOWN_TAG), ","), 0), "")
    tag_names, tag = np.unique(tags.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    author, music = (np.unique(items[name].to_numpy(), return_inverse=True)[1] for name in ("author_id", "music_id"))
    return Catalogue(
        ids=items["video_id"].to_numpy(),
        author=author,
        tag=tag,
        music=music,
        tag_names=tuple(tag_names.tolist()),
        num_authors=int(author.max(initial=-1)) + 1,
        table=items,
    )


def impressions_of(table: pa.Table, users: pa.Table, catalogue: Catalogue) -> Impressions:
    """Impressions sorted by time, stable; a repeated (user, time, video) counts once.

    Raises:
        LogError: A user or a video is not in its table, or a tab or an hour is out of range.
    """
    columns = {name: table[name].to_numpy() for name in table.schema.names}
    order = np.argsort(columns["time_ms"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    user = row_numbers(columns["user_id"], users["user_id"].to_numpy(), "user_id")
    video = row_numbers(columns["video_id"], catalogue.ids, "video_id")
    _check_range("tab", columns["tab"], NUM_TABS)
    _check_range("hourmin", columns["hourmin"], 100 * NUM_HOURS)
    click = columns["is_click"] == 1
    engaged = np.logical_or.reduce([columns[name] == 1 for name in ENGAGEMENTS])
    rows = Impressions(
        time_ms=columns["time_ms"],
        day=local_day(columns["time_ms"]),
        hour=columns["hourmin"] // 100,
        tab=columns["tab"].astype(np.int64),
        user=user,
        video=video,
        click=click.astype(np.int8),
        engage=(click & engaged).astype(np.int8),
        long_view=(columns["long_view"] == 1).astype(np.int8),
    )
    _, first = np.unique(np.stack([rows.time_ms, user, video]), axis=1, return_index=True)
    return rows.take(np.sort(first))


def _check_range(column: str, values: np.ndarray, limit: int) -> None:
    wrong = (values < 0) | (values >= limit)
    if wrong.any():
        raise LogError(f"column {column}: expected 0..{limit - 1}, got {values[wrong][0]}")


def row_numbers(values: np.ndarray, known: np.ndarray, column: str) -> np.ndarray:
    """Row of each value in a table whose keys are ``known``, int64.

    Raises:
        LogError: A value is not known.

    Example:
        >>> row_numbers(np.array([7, 5, 7]), np.array([5, 7]), "user_id").tolist()
        [1, 0, 1]
    """
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known, values, sorter=order), max(len(known) - 1, 0))
    found = order[place] if len(known) else np.zeros(len(values), np.int64)
    wrong = known[found] != values if len(known) else np.ones(len(values), bool)
    if wrong.any():
        raise LogError(f"column {column}: {values[wrong][0]} has no row in the table that describes it")
    return found
