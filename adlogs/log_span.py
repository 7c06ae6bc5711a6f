"""When a log begins and ends, for options that name a moment of it."""

from datetime import UTC, datetime, timedelta

import numpy as np

from contracts.columns import instants
from contracts.errors import InputError, LogError
from contracts.parquet import sound_batches
from contracts.records import TIME, LogPaths, check_columns, open_dataset

TEACHER_SHARE, STUDENT_SHARE = 0.5, 0.8
"""Of the requests by time, where a log is divided: what the teacher learns, what the student learns, what judges."""

MIN_MOMENTS = 3

_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def request_span(log: LogPaths) -> tuple[datetime, datetime] | None:
    """UTC times of the first and the last request; None where there is none.

    Raises:
        LogError: The requests are absent, or have no usable ``event_time``.
    """
    dataset = open_dataset(log.requests)
    check_columns(dataset.schema, {"event_time": TIME}, source=log.requests)
    first = last = None
    for batch in sound_batches(dataset.to_batches(["event_time"]), source=log.requests):
        times = instants(batch["event_time"].drop_null())
        if len(times):
            first = min(int(times.min()), first) if first is not None else int(times.min())
            last = max(int(times.max()), last) if last is not None else int(times.max())
    return None if first is None or last is None else (_moment(first), _moment(last))


def judge_until(log: LogPaths, until: datetime) -> str | None:
    """What to say of a moment up to which a log is read: a warning where it lies after the end, and leaves nothing out.

    The midnight that ends the last day is a usual way to say all of it and is not worth a word.

    Raises:
        InputError: It does not lie after the first request, so that nothing would be read.
    """
    span = request_span(log)
    if span is None:
        return None
    first, last = span
    if until <= first:
        raise InputError(
            f"--until {until.isoformat()}: expected a time after the first request of {log.requests}, which is at "
            f"{first.isoformat()}"
        )
    midnight = last.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    if until > midnight:
        return (
            f"--until {until.isoformat()} lies after the last request of {log.requests}, which is at "
            f"{last.isoformat()}: the whole log is read, and nothing of it is left to test on"
        )
    return None


def _nearest(times: np.ndarray, time: int) -> int:
    return int(times[np.abs(times - time).argmin()])


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def split_moments(log: LogPaths) -> dict[str, str]:
    """Where training divides a log: the teacher learns before the first moment, the student until the second.

    They are midnights where the log has enough days, so that a day is never divided. What comes after the second judges
    the student.

    Returns:
        ``first``, ``last``, ``teacher_until`` and ``student_until``, ISO 8601 in UTC.

    Raises:
        LogError: The requests are absent, or have no usable ``event_time``, or there are fewer than three moments.
    """
    dataset = open_dataset(log.requests)
    check_columns(dataset.schema, {"event_time": TIME}, source=log.requests)
    parts = [
        instants(batch["event_time"].drop_null())
        for batch in sound_batches(dataset.to_batches(["event_time"]), source=log.requests)
    ]
    times = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    if len(np.unique(times)) < MIN_MOMENTS:
        raise LogError(f"{log.requests}: expected requests of at least {MIN_MOMENTS} moments, got {len(times)}")
    found = [int(times[int(share * len(times))]) for share in (TEACHER_SHARE, STUDENT_SHARE)]
    midnights = np.arange(times[0] // _DAY_US + 1, times[-1] // _DAY_US + 1) * _DAY_US
    if len(midnights) > 1:
        student = _nearest(midnights[1:], found[1])
        found = [_nearest(midnights[midnights < student], found[0]), student]
    elif found[0] == found[1]:
        distinct = np.unique(times)
        found = [int(distinct[-2]), int(distinct[-1])]
    names = ("first", "last", "teacher_until", "student_until")
    moments = (int(times[0]), int(times[-1]), *found)
    return {name: _moment(time).isoformat().replace("+00:00", "Z") for name, time in zip(names, moments, strict=True)}
