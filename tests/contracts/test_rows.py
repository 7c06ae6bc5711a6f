import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.encoding import Encoder
from contracts.errors import RequestError
from contracts.moments import MAX_EPOCH_MS, MIN_EPOCH_MS
from contracts.rows import encode_pairs, encode_request, pair_columns, parse_time, request_columns
from contracts.schema import FeatureSchema

NOW = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
NOW_MS = int(NOW.timestamp()) * 1000
QUERY: dict[str, Any] = {
    "country": "中国",
    "user_ctr": 0.25,
    "visits": 3,
    "watch": {
        "video_id": [1, 2, 3, 4, 5],
        "tag": ["1", None, "été", 39, "x"],
        "time": [NOW_MS - hours * 3_600_000 for hours in (5, 4, 3, 2, 1)],
    },
}
LOGGED = {
    "country": pa.array(["中国"]),
    "user_ctr": pa.array([0.25]),
    "visits": pa.array([3], pa.int32()),
    "watch.video_id": pa.array([[1, 2, 3, 4, 5]], pa.list_(pa.int64())),
    "watch.tag": pa.array([["1", None, "été", "39", "x"]]),
    "watch.time": pa.array(
        [[NOW - dt.timedelta(hours=hours) for hours in (5, 4, 3, 2, 1)]], pa.list_(pa.timestamp("s", "UTC"))
    ),
}


@pytest.fixture(scope="module")
def encoder(schema: FeatureSchema) -> Encoder:
    return Encoder(schema, "query")


def encode(encoder: Encoder, query: dict[str, Any]) -> tuple[list[int], list[float]]:
    encoded, _ = encode_request(encoder, query, event_time_us=NOW_MS * 1000)
    return encoded.ids[0].tolist(), encoded.floats[0].tolist()


def test_a_request_is_encoded_as_its_log_row(encoder: Encoder) -> None:
    logged = encoder.encode(LOGGED, event_time=np.array([NOW_MS * 1000])).encoded
    assert encode(encoder, QUERY) == (logged.ids[0].tolist(), logged.floats[0].tolist())


def test_absent_and_null_fields_are_missing(encoder: Encoder) -> None:
    nulls = {"country": None, "user_ctr": None, "visits": None, "watch": None}
    empty = {"watch": {"video_id": None, "tag": None, "time": []}}
    missing = ([1] + [0] * 12, [pytest.approx(0.5), 0.0])
    assert encode(encoder, {}) == encode(encoder, nulls) == encode(encoder, empty) == missing


def test_an_absent_field_of_a_sequence_is_missing_in_each_event(encoder: Encoder) -> None:
    ids, _ = encode(encoder, {"watch": {"tag": ["1", "39"]}})
    assert ids[1:] == [4, 3, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]


def test_unknown_names_are_listed_and_change_nothing(encoder: Encoder) -> None:
    query = {**QUERY, "new": {"a": [1]}, "price": 3, "watch": {**QUERY["watch"], "dwell": [1]}}
    encoded, unknown = encode_request(encoder, query, event_time_us=NOW_MS * 1000)
    assert sorted(unknown) == ["new", "price", "watch.dwell"]
    assert encoded.ids[0].tolist() == encode(encoder, QUERY)[0]


@pytest.mark.parametrize(
    ("value", "text"), [(39, "39"), (True, "1"), (False, "0"), (-(2**70), str(-(2**70))), ("", "")]
)
def test_integers_and_booleans_are_their_text(encoder: Encoder, value: object, text: str) -> None:
    columns, _ = request_columns(encoder, {"country": value})
    assert columns["country"].to_pylist() == [text]


def test_only_the_most_recent_events_are_converted(encoder: Encoder) -> None:
    columns, _ = request_columns(encoder, {"watch": {"tag": [{"not": "looked at"}, "a", "b", "c", "d"]}})
    assert columns["watch.tag"].to_pylist() == [["a", "b", "c", "d"]]


WRONG = [
    ({"country": 1.5}, "query.country", "expected text, an integer or a boolean, got 1.5"),
    ({"country": ["DE"]}, "query.country", 'expected text, an integer or a boolean, got ["DE"]'),
    ({"country": b"DE"}, "query.country", "expected text, an integer or a boolean"),
    ({"country": "\ud800"}, "query.country", "expected valid Unicode text"),
    ({"user_ctr": "0.5"}, "query.user_ctr", 'expected a finite number, got "0.5"'),
    ({"user_ctr": float("nan")}, "query.user_ctr", "expected a finite number, got NaN"),
    ({"user_ctr": 10**400}, "query.user_ctr", "expected a finite number"),
    ({"user_ctr": 1e300}, "query.user_ctr", "holds NaN, an infinity or a number beyond float32"),
    ({"watch": [1, 2]}, "query.watch", "expected a mapping of tag, time, video_id to lists, got [1, 2]"),
    ({"watch": {"tag": "1"}}, "query.watch.tag", 'expected a list of one value an event, got "1"'),
    ({"watch": {"tag": ["1", 0.5]}}, "query.watch.tag[1]", "expected text, an integer or a boolean, got 0.5"),
    ({"watch": {"tag": ["1"], "video_id": [1, 2]}}, "query.watch.video_id", "expected lists of equal length, got 2"),
    ({"watch": {"time": [NOW_MS, "today"]}}, "query.watch.time[1]", "expected an RFC 3339 time with a zone, such as"),
    ({"watch": {"time": ["2024-05-01T10:00:00"]}}, "query.watch.time[0]", "expected an RFC 3339 time with a zone"),
    ({"watch": {"time": [MIN_EPOCH_MS - 1]}}, "query.watch.time[0]", "expected an RFC 3339 time with a zone"),
    ({"watch": {"time": [NOW_MS + 1]}}, "query.watch.time", "holds an event later than the request, expected none"),
    ({"watch": {"time": [NOW_MS, NOW_MS - 1]}}, "query.watch.time", "is not in the order of time"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "field", "message"), WRONG, ids=[f"{field}-{at}" for at, (_, field, _) in enumerate(WRONG)]
)
def test_a_wrong_value_names_its_field(encoder: Encoder, query: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        encode_request(encoder, query, event_time_us=NOW_MS * 1000)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: {message}")
    assert len(str(caught.value)) < 250


@given(instant=st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2100, 1, 1), timezones=st.timezones()))
def test_rfc_3339_text_is_read_to_the_microsecond(instant: dt.datetime) -> None:
    elapsed = instant.astimezone(dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert parse_time(instant.isoformat(), "event_time") == elapsed // dt.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        *((MIN_EPOCH_MS, MIN_EPOCH_MS * 1000), (MAX_EPOCH_MS, MAX_EPOCH_MS * 1000)),
        ("0001-01-01T00:00:00Z", MIN_EPOCH_MS * 1000),
        ("9999-12-31T23:59:59.999999Z", MAX_EPOCH_MS * 1000 + 999),
    ],
)
def test_the_first_and_last_moment_can_be_told_by_python(value: Any, micros: int) -> None:
    found = parse_time(value, "event_time")
    assert found == micros
    assert pa.scalar(found, pa.timestamp("us", "UTC")).as_py().year in (1, 9999)


@pytest.mark.parametrize(
    "value",
    [
        *(True, 1.5, None, [], "", "2024", "2024-05-01", "2024-05-01T12:00:00", 10**18, -(10**18), "x" * 1000),
        *(MIN_EPOCH_MS - 1, -MAX_EPOCH_MS, MAX_EPOCH_MS + 1),
        *("0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:01"),
    ],
)
def test_other_times_are_refused(value: object) -> None:
    with pytest.raises(RequestError, match=r"^event_time: expected an RFC 3339 time with a zone") as caught:
        parse_time(value, "event_time")
    assert caught.value.field == "event_time"


def test_ads_are_read_like_requests(schema: FeatureSchema) -> None:
    row = {"video_id": 7, "tags": ["1", None, 39, "cut off"], "image": [1, 2.5, -3], "price": 10}
    encoder = Encoder(schema, "ad")
    columns, unknown = request_columns(encoder, row, prefix="ad")
    logged = {
        "video_id": pa.array([7]),
        "tags": pa.array([["1", None, "39", "cut off"]]),
        "image": pa.array([[1.0, 2.5, -3.0]], pa.list_(pa.float32())),
        "price": pa.array([10.0]),
    }
    expected, got = encoder.encode(logged).encoded, encoder.encode(columns).encoded
    assert unknown == []
    assert got.ids.tolist() == expected.ids.tolist()
    assert got.floats.tolist() == expected.floats.tolist()
    for wrong in ([1, 2], [1, 2, None], [1, 2, "3"], 5):
        with pytest.raises(RequestError, match=r"^ad\.image"):
            request_columns(encoder, {"image": wrong}, prefix="ad")


def test_pair_columns_hold_one_value_a_candidate(schema: FeatureSchema) -> None:
    encoder = Encoder(schema, "pair")
    columns = {"ids": ["a", "b", "c"], "user_advertiser_clicks": [1, None, 2.5], "seen": [39, "9", None]}
    assert set(pair_columns(encoder, columns, 3)) == {"user_advertiser_clicks", "seen"}
    batch = encode_pairs(encoder, columns, 3)
    assert batch.encoded.ids.tolist() == [[4], [2], [1]]
    np.testing.assert_allclose(batch.encoded.floats[:, 0], [np.log1p(1), 1.5, np.log1p(2.5)], rtol=1e-6)
    assert batch.coverage.missing == {"seen": 1, "user_advertiser_clicks": 1}


def test_absent_pair_columns_are_missing(schema: FeatureSchema) -> None:
    batch = encode_pairs(Encoder(schema, "pair"), {"ids": ["a", "b"]}, 2)
    assert batch.encoded.ids.tolist() == [[1], [1]]
    assert batch.encoded.floats.tolist() == [[1.5], [1.5]]


@pytest.mark.parametrize(
    ("columns", "field", "message"),
    [
        ({"seen": ["1"]}, "candidates.seen", "expected a list of one value for each candidate: 2, got a list of 1"),
        ({"seen": "12"}, "candidates.seen", 'expected a list of one value for each candidate: 2, got "12"'),
        ({"seen": ["1", 1.5]}, "candidates.seen[1]", "expected text, an integer or a boolean, got 1.5"),
        (
            {"user_advertiser_clicks": [1, "2"]},
            "candidates.user_advertiser_clicks[1]",
            'expected a finite number, got "2"',
        ),
    ],
)
def test_a_wrong_pair_column_names_its_candidate(
    schema: FeatureSchema, columns: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        encode_pairs(Encoder(schema, "pair"), columns, 2)
    assert str(caught.value) == f"{field}: {message}"
