"""What each user had watched before an impression: three histories, oldest event first.

Letters: N impressions, E events of one kind, M pairs.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from adlogs.kuairand_rows import Catalogue, row_numbers
from adlogs.kuairand_source import SEQUENCE_COLUMNS, Source

MAX_EVENTS = 50
KINDS = tuple(SEQUENCE_COLUMNS)
_USER_STEP = 1 << 42  # milliseconds since 1970 stay below this


@dataclass(frozen=True, kw_only=True)
class History:
    """Events of one kind; an impression's own are a run of them.

    Args:
        video: Row in the catalogue, int64 [E].
        until_ms: UTC time of each event, or a bound that it is not later than, int64 [E].
        start: First event of each impression, int64 [N].
        stop: One past its last event, int64 [N].
    """

    video: np.ndarray
    until_ms: np.ndarray
    start: np.ndarray
    stop: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Histories:
    """The three histories of N impressions.

    Args:
        by_kind: ``watch``, ``like`` and ``long_watch``.
        length: Events watched in all, also those beyond ``MAX_EVENTS``, int64 [N].
        last_ms: UTC time of the last event, int64 [N]; -1 where there is none.
        has_times: Whether ``until_ms`` is each event's own time.
    """

    by_kind: dict[str, History]
    length: np.ndarray
    last_ms: np.ndarray
    has_times: bool

    def take(self, rows: np.ndarray) -> "Histories":
        """Those of some impressions."""
        kept = {
            kind: History(video=found.video, until_ms=found.until_ms, start=found.start[rows], stop=found.stop[rows])
            for kind, found in self.by_kind.items()
        }
        return Histories(by_kind=kept, length=self.length[rows], last_ms=self.last_ms[rows], has_times=self.has_times)

    def num_events(self, kind: str) -> np.ndarray:
        """Events kept, int64 [N]."""
        return self.by_kind[kind].stop - self.by_kind[kind].start


def histories_of(
    source: Source, users: np.ndarray, catalogue: Catalogue, user: np.ndarray, time_ms: np.ndarray
) -> Histories:
    """The histories that the data set gives, or those made of strictly earlier rows where it gives none.

    Args:
        source: The data set.
        users: User ids by row of the user table.
        catalogue: The videos.
        user: Rows of the user table, int64 [N].
        time_ms: UTC times of the impressions, int64 [N].
    """
    if source.sequences is not None:
        return _given(source.sequences, users, catalogue, user)
    if source.earlier is None:
        raise ValueError("a source holds either sequences or earlier impressions")
    return _from_log(source.earlier, users, catalogue, user, time_ms)


def _given(sequences: pa.Table, users: np.ndarray, catalogue: Catalogue, user: np.ndarray) -> Histories:
    """Lists of one row a user; their events have no times of their own, only the user's last one as a bound."""
    row_of = np.full(len(users), len(sequences))
    row_of[row_numbers(sequences["user_id"].to_numpy(), users, "user_id")] = np.arange(len(sequences))
    row = row_of[user]  # one past the end where a user has no history
    last_ms = sequences["last_time_ms"].to_numpy()
    by_kind = {}
    for kind, column in SEQUENCE_COLUMNS.items():
        lists = sequences[column].combine_chunks()
        offsets = np.asarray(lists.offsets).astype(np.int64)
        videos = np.asarray(lists.values)[offsets[0] : offsets[-1]]
        bounds = np.append(offsets - offsets[0], offsets[-1] - offsets[0])
        by_kind[kind] = History(
            video=row_numbers(videos, catalogue.ids, f"{column} (video_id)"),
            until_ms=np.repeat(last_ms, np.diff(offsets)),
            start=bounds[row],
            stop=bounds[row + 1],
        )
    length = np.append(sequences["history_len"].to_numpy(), 0)[row]
    return Histories(by_kind=by_kind, length=length, last_ms=np.append(last_ms, -1)[row], has_times=False)


def _from_log(
    log: pa.Table, users: np.ndarray, catalogue: Catalogue, user: np.ndarray, time_ms: np.ndarray
) -> Histories:
    """A video counts as watched where it was played at all."""
    columns = {name: log[name].to_numpy() for name in log.schema.names}
    events = np.isin(columns["user_id"], users) & (columns["play_time_ms"] > 0)
    columns = {name: values[events] for name, values in columns.items()}
    moment = row_numbers(columns["user_id"], users, "user_id") * _USER_STEP + columns["time_ms"]
    video = row_numbers(columns["video_id"], catalogue.ids, "video_id")
    order = np.argsort(moment, kind="stable")
    outcome = {
        "watch": np.ones(len(order), bool),
        "like": columns["is_like"] == 1,
        "long_watch": columns["long_view"] == 1,
    }
    by_kind, now = {}, user * _USER_STEP + time_ms
    for kind in KINDS:
        rows = order[outcome[kind][order]]
        first = np.searchsorted(moment[rows], user * _USER_STEP)
        stop = np.searchsorted(moment[rows], now)  # strictly earlier
        by_kind[kind] = History(
            video=video[rows],
            until_ms=columns["time_ms"][rows],
            start=np.maximum(first, stop - MAX_EVENTS),
            stop=stop,
        )
        if kind == "watch":
            length = stop - first
    watch = by_kind["watch"]
    last_ms = np.append(watch.until_ms, -1)[np.where(length > 0, watch.stop - 1, -1)]
    return Histories(by_kind=by_kind, length=length, last_ms=last_ms, has_times=True)


class Matches:
    """Counts the events of a history that share something with a video.

    Args:
        history: Events of one kind.
        code_of: What videos may share: a code a video, int64 [V].

    Example:
        >>> history = History(
        ...     video=np.array([0, 1, 1]), until_ms=np.zeros(3, int), start=np.array([0, 1]), stop=np.array([2, 3])
        ... )
        >>> Matches(history, np.array([0, 1])).count(np.array([0, 1]), np.array([1, 1])).tolist()
        [1, 2]
    """

    def __init__(self, history: History, code_of: np.ndarray) -> None:
        self._history, self._code_of = history, code_of
        self._step = len(history.video) + 1
        self._places = np.sort(code_of[history.video] * self._step + np.arange(len(history.video)))

    def count(self, impression: np.ndarray, video: np.ndarray) -> np.ndarray:
        """Events of ``impression``'s history that share the code of ``video``; int64 [M], arguments int64 [M]."""
        first = self._code_of[video] * self._step
        begin, end = self._history.start[impression], self._history.stop[impression]
        return np.searchsorted(self._places, first + end) - np.searchsorted(self._places, first + begin)
