import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from contracts.encoding import EncodedBatch, Encoder
from contracts.errors import LogError
from contracts.schema import FeatureSchema
from contracts.sequence_encoder import age_edges

NOW = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000
TIMES = pa.list_(pa.timestamp("us", "UTC"))
TAGS = pa.list_(pa.string())


def ago(**time: float) -> dt.datetime:
    return NOW - dt.timedelta(**time)


def encode(schema: FeatureSchema, tags: Any, events: Any, **options: Any) -> EncodedBatch:
    """Encode two columns of the sequence, the rest absent."""
    columns = {"watch.tag": pa.array(tags, TAGS), "watch.time": pa.array(events, TIMES)}
    event_time = np.full(len(tags), NOW_US)
    return Encoder(schema, "query").encode(columns, event_time=event_time, absent="missing", **options)


def field(schema: FeatureSchema, batch: EncodedBatch, name: str) -> list[list[int]]:
    (watch,) = Encoder(schema, "query").layout.sequences
    (column,) = [one for one in watch.fields if one.name == name]
    return batch.encoded.ids[:, column.start : column.start + column.width].tolist()


def test_the_most_recent_events_are_kept_newest_first(schema: FeatureSchema) -> None:
    tags = [["1", "1", "39", "1", "été", "39"], ["1", "39"], []]
    events = [[ago(minutes=60 - at) for at in range(6)], [ago(days=2), ago(minutes=2)], []]
    batch = encode(schema, tags, events)
    assert field(schema, batch, "tag") == [[4, 5, 3, 4], [4, 3, 0, 0], [0, 0, 0, 0]]
    assert field(schema, batch, "time")[2] == [0, 0, 0, 0]


def test_the_mask_is_where_the_first_field_is_not_padding(schema: FeatureSchema) -> None:
    batch = encode(schema, [[None, None], None, None], [[ago(hours=1), None], [None], None])
    for name in ("tag", "time", "video_id"):
        kept = [[one != 0 for one in row] for row in field(schema, batch, name)]
        assert kept == [[True, True, False, False], [True, False, False, False], [False] * 4]
    assert field(schema, batch, "tag") == [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert field(schema, batch, "video_id") == [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert batch.coverage.missing["watch.tag"] == 2
    assert batch.coverage.missing["watch.time"] == 1
    assert batch.coverage.missing["watch.video_id"] == 3


def test_ages_fall_between_one_minute_and_one_year(schema: FeatureSchema) -> None:
    edges_s = age_edges(12) // 1_000_000
    assert edges_s[0] == 60
    assert edges_s[-1] == 365 * 24 * 3600
    assert len(edges_s) == 12 - 4
    np.testing.assert_allclose(np.diff(np.log(edges_s)), np.log(365 * 24 * 60) / 7, rtol=0.01)
    ages = [dt.timedelta(), dt.timedelta(seconds=59.999), dt.timedelta(seconds=60), dt.timedelta(days=365)]
    ages.append(dt.timedelta(days=20_000))
    events = [[NOW - age] for age in ages]
    assert [row[0] for row in field(schema, encode(schema, [["1"]] * 5, events), "time")] == [3, 3, 4, 11, 11]


def test_an_age_is_taken_against_its_own_request(schema: FeatureSchema) -> None:
    columns = {"watch.time": pa.array([[ago(hours=1)]] * 2, TIMES)}
    event_time = np.array([NOW_US, NOW_US + 30 * 24 * 3600 * 1_000_000])
    batch = Encoder(schema, "query").encode(columns, event_time=event_time, absent="missing")
    (first, *_), (second, *_) = field(schema, batch, "time")
    edges = age_edges(12)
    assert first == 3 + int((edges <= 3600 * 1_000_000).sum())
    assert second == 3 + int((edges <= (30 * 24 + 1) * 3600 * 1_000_000).sum())


def test_an_event_later_than_the_request_is_refused(schema: FeatureSchema) -> None:
    tags, events = [["1"], ["1", "39"]], [[NOW], [NOW, NOW + dt.timedelta(microseconds=1)]]
    with pytest.raises(
        LogError, match=r"column 'watch.time' holds an event later than the request, expected none.*row 1"
    ):
        encode(schema, tags, events)
    batch = encode(schema, tags, events, invalid="mark")
    assert batch.invalid.tolist() == [False, True]
    assert (batch.encoded.ids[1] == 0).all()
    assert [(fault.column, fault.row) for fault in batch.faults] == [("watch.time", 1)]


def test_events_that_are_dropped_do_not_count(schema: FeatureSchema) -> None:
    """Only the kept events are checked: a request may send them alone and must be encoded like the full history."""
    late = [NOW + dt.timedelta(days=1), *(ago(hours=9 - at) for at in range(4))]
    full = encode(schema, [["1"] * 5], [late])
    kept = encode(schema, [["1"] * 4], [late[1:]])
    assert full.encoded.ids.tolist() == kept.encoded.ids.tolist()


def test_events_out_of_order_are_refused(schema: FeatureSchema) -> None:
    with pytest.raises(
        LogError, match=r"column 'watch.time' is not in the order of time, expected the oldest event first"
    ):
        encode(schema, [["1", "39"]], [[ago(hours=1), ago(hours=2)]])
    same = encode(schema, [["1", "39"], ["1", "1"]], [[ago(hours=1)] * 2, [ago(hours=3), ago(hours=2)]])
    assert not same.invalid.any()


def test_lists_of_unequal_length_are_refused(schema: FeatureSchema) -> None:
    tags, events = [["1"], ["1", "39"], ["1"]], [[ago(hours=1)], [ago(hours=1)], []]
    with pytest.raises(
        LogError, match=r"column 'watch.time' has another number of events.*expected lists of equal length"
    ):
        encode(schema, tags, events)
    batch = encode(schema, tags, events, invalid="mark")
    assert batch.invalid.tolist() == [False, True, True]
    assert (batch.encoded.ids[1:] == 0).all()


def test_a_null_list_is_missing_in_each_of_its_events(schema: FeatureSchema) -> None:
    batch = encode(schema, [None, ["1"]], [[ago(hours=2), ago(hours=1)], [ago(hours=1)]])
    assert field(schema, batch, "tag") == [[1, 1, 0, 0], [3, 0, 0, 0]]
    assert not batch.invalid.any()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([[dt.datetime(2024, 1, 1)]]), r"has type timestamp\[us\], expected timestamps with a time zone"),
        (pa.array([[1_700_000_000_000]]), "has type int64, expected timestamps with a time zone"),
        (pa.array([NOW]), r"has type timestamp\[us, tz=UTC\], expected a list of timestamps with a time zone"),
    ],
)
def test_times_without_a_zone_or_a_list_are_refused(schema: FeatureSchema, array: pa.Array, message: str) -> None:
    with pytest.raises(LogError, match=f"^requests: column 'watch.time' {message}"):
        Encoder(schema, "query").encode(
            {"watch.time": array}, event_time=np.array([NOW_US]), absent="missing", source="requests"
        )


def test_an_age_without_request_times_is_a_mistake_of_the_caller(schema: FeatureSchema) -> None:
    with pytest.raises(ValueError, match=r"watch.time is an age: encoding it needs event_time"):
        Encoder(schema, "query").encode({"watch.time": pa.array([[NOW]], TIMES)}, absent="missing")
    with pytest.raises(ValueError, match=r"one time a row, got shape \(2,\) for 1 rows"):
        Encoder(schema, "query").encode(
            {"watch.time": pa.array([[NOW]], TIMES)}, event_time=np.zeros(2), absent="missing"
        )
