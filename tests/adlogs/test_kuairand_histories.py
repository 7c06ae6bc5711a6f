"""Histories made of a log, and what they share with videos."""

import numpy as np
import pyarrow as pa

from adlogs.kuairand_histories import MAX_EVENTS, History, Matches, histories_of
from adlogs.kuairand_rows import Catalogue
from adlogs.kuairand_source import Source

USERS = np.array([7, 3])


def made_catalogue(videos: int) -> Catalogue:
    codes = np.arange(videos)
    return Catalogue(
        ids=100 + codes, author=codes, tag=codes % 3, music=codes, tag_names=("a", "b", "c"), num_authors=videos,
        table=pa.table({}),
    )  # fmt: skip


def source_of(user: list[int], video: list[int], time_ms: list[int], like: list[int], play: list[int]) -> Source:
    rows = {"user_id": user, "video_id": video, "time_ms": time_ms, "is_like": like, "play_time_ms": play}
    log = pa.table({**rows, "long_view": like})
    return Source(impressions=log, items=pa.table({}), users=pa.table({}), sequences=None, earlier=log)


def events(history: History, row: int) -> list[int]:
    return history.video[history.start[row] : history.stop[row]].tolist()


def test_only_played_rows_before_the_moment_count() -> None:
    source = source_of(
        [3, 3, 3, 7, 3], [100, 101, 102, 103, 104], [50, 10, 20, 5, 30], [1, 0, 1, 1, 1], [9, 9, 0, 9, 9]
    )
    user, time_ms = np.array([1, 1, 1, 0, 0]), np.array([10, 30, 51, 5, 6])
    found = histories_of(source, USERS, made_catalogue(5), user, time_ms)
    assert [events(found.by_kind["watch"], row) for row in range(5)] == [[], [1], [1, 4, 0], [], [3]]
    assert [events(found.by_kind["like"], row) for row in range(5)] == [[], [], [4, 0], [], [3]]
    assert found.length.tolist() == [0, 1, 3, 0, 1]
    assert found.last_ms.tolist() == [-1, 10, 50, -1, 5]
    assert found.has_times


def test_rows_of_users_that_are_not_converted_are_left_out() -> None:
    source = source_of([9, 3], [100, 101], [1, 2], [0, 0], [5, 5])
    found = histories_of(source, USERS, made_catalogue(2), np.array([1]), np.array([9]))
    assert events(found.by_kind["watch"], 0) == [1]


def test_the_most_recent_events_are_kept() -> None:
    count = MAX_EVENTS + 9
    moments = list(range(count))
    source = source_of([3] * count, [100 + at for at in moments], moments, [0] * count, [1] * count)
    found = histories_of(source, USERS, made_catalogue(count), np.array([1, 1]), np.array([count, 4]))
    assert events(found.by_kind["watch"], 0) == moments[-MAX_EVENTS:]
    assert events(found.by_kind["watch"], 1) == [0, 1, 2, 3]
    assert found.length.tolist() == [count, 4]


def test_matches_equal_a_plain_count() -> None:
    random = np.random.default_rng(0)
    code_of, video = random.integers(0, 4, 12), random.integers(0, 12, 60)
    start = random.integers(0, 60, 25)
    stop = np.minimum(start + random.integers(0, 20, 25), 60)
    history = History(video=video, until_ms=np.zeros(60, np.int64), start=start, stop=stop)
    impression, asked = random.integers(0, 25, 90), random.integers(0, 12, 90)
    found = Matches(history, code_of).count(impression, asked)
    plain = [(code_of[video[start[i] : stop[i]]] == code_of[v]).sum() for i, v in zip(impression, asked, strict=True)]
    assert found.tolist() == plain
