"""Bodies become requests; every fault names its field, in JSON and in MessagePack."""

import msgspec
import numpy as np
import pytest

from contracts.errors import InputError, RequestError
from service.media import JSON, MSGPACK, media_type
from service.wire import candidate_columns, decode_request

MINIMAL = {"scenario": "shopping", "query": {}}


def columns(candidates):
    return candidate_columns(candidates, max_candidates=5)


@pytest.mark.parametrize("media", [JSON, MSGPACK])
def test_a_body_becomes_a_request(media):
    body = MINIMAL | {
        "request_id": "r-ü",
        "query": {"country": "日本", "watch": {"ad": ["a", None]}},
        "candidates": ["a", "b"],
        "event_time": "2026-03-01T12:00:00+01:00",
        "timeout_ms": 50,
    }
    encode = msgspec.json.encode if media == JSON else msgspec.msgpack.encode
    request = decode_request(encode(body), media)
    assert (request.request_id, request.candidates, request.timeout_ms) == ("r-ü", ["a", "b"], 50.0)
    assert request.query == body["query"]
    assert request.event_time.isoformat() == "2026-03-01T12:00:00+01:00"
    assert (request.stage, request.survivors, request.limit, request.explain) == ("full", None, None, False)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"cadidates": []}, "cadidates", "unknown field"),
        ({"scenario": 3}, "scenario", "expected text, got 3"),
        ({"scenario": ""}, "scenario", 'expected text of length 1 or more, got ""'),
        ({"query": []}, "query", "expected a mapping, got "),
        ({"candidates": 3}, "candidates", "expected .*got 3"),
        ({"candidates": ["a", 1]}, r"candidates\[1\]", "expected text, got 1"),
        ({"filters": {"exclude_advertisers": [1]}}, r"filters.exclude_advertisers\[0\]", "expected text, got 1"),
        ({"filters": {"exclude": []}}, "filters.exclude", "unknown field"),
        ({"survivors": 0}, "survivors", "expected a whole number of 1 or more or null, got 0"),
        ({"limit": 1.5}, "limit", "expected a whole number of 1 or more or null, got 1.5"),
        ({"stage": "medium"}, "stage", 'expected one of .*, got "medium"'),
        ({"timeout_ms": 0}, "timeout_ms", "expected a number above 0 and of at most 600,000 or null, got 0"),
        ({"timeout_ms": 1e300}, "timeout_ms", "at most 600,000"),
        ({"event_time": "2026-03-01T12:00:00"}, "event_time", "timezone"),
        ({"event_time": "yesterday"}, "event_time", "RFC3339"),
        ({"explain": "yes"}, "explain", 'expected true or false, got "yes"'),
        ({"request_id": "x" * 257}, "request_id", "of length at most 256"),
    ],
)
@pytest.mark.parametrize("media", [JSON, MSGPACK])
def test_a_wrong_value_names_its_field(change, field, message, media):
    encode = msgspec.json.encode if media == JSON else msgspec.msgpack.encode
    with pytest.raises(RequestError, match=f"^{field}: .*{message}"):
        decode_request(encode(MINIMAL | change), media)


def test_a_missing_field_is_named():
    with pytest.raises(RequestError, match=r"^query: required field is missing"):
        decode_request(b'{"scenario": "shopping"}')
    with pytest.raises(RequestError, match=r"^body: expected a mapping with .*, got \[\]"):
        decode_request(b"[]")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"query": NaN}',
        b'{"scenario": "s", "query": {}} {}',
        b'{"scenario": "\xff"}',
        b'{"query": {"a": "\\ud800"}}',
    ],
)
def test_what_is_no_json_is_not_parseable(body):
    with pytest.raises(InputError, match="not valid application/json") as caught:
        decode_request(body)
    assert not isinstance(caught.value, RequestError)


def test_nesting_without_end_is_not_parseable():
    with pytest.raises(InputError, match="not valid application/json"):
        decode_request(b'{"scenario": "s", "query": {"a": ' + b"[" * 100_000)


@pytest.mark.parametrize("rest", [b"\xc1", b""])
def test_a_key_that_is_no_text_is_named_in_a_body_that_ends_wrong(rest):
    with pytest.raises(RequestError, match="^query: expected every key to be text$"):
        decode_request(b"\x83\xa8scenario\xa1s\xa5query\x81\x01\x02" + rest, MSGPACK)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (b'"query":{"a":1e999}', r"query\.\*: number out of range$"),
        (b'"query":{"a":{"b":[1,1e999]}}', r"query\.\*\.\*\[1\]: number out of range$"),
        (b'"query":{},"candidates":{"ids":1e999}', r"candidates\.\*: number out of range$"),
        (b'"query":{},"candidates":[1e999]', r"candidates\[0\]: number out of range$"),
        (b'"query":{},"limit":1e999', "limit: expected a whole number of 1 or more or null$"),
        (b'"query":{},"no":1e999', "no: unknown field, expected one of "),
        (b'"query":{},"limit":"a","x":\xff', "limit: expected a whole number of 1 or more or null$"),
        (b'"query":{"a":1e999},"query":[]', r"query\.\*: number out of range$"),
    ],
)
def test_a_fault_is_named_in_a_body_in_which_nobody_can_look(more, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        decode_request(b'{"scenario":"s",' + more + b"}")


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81", b"\x81\xa1\xff\x01"])
def test_what_is_no_messagepack_is_not_parseable(body):
    with pytest.raises(InputError, match="not valid application/msgpack"):
        decode_request(body, MSGPACK)


def test_media_types():
    assert [media_type(name) for name in (None, "application/json;charset=utf-8", "application/x-msgpack")] == [
        JSON,
        JSON,
        MSGPACK,
    ]
    assert media_type("text/plain") is None


def test_candidates_as_ids_and_as_columns():
    assert columns(["b", "a", "b"]).ids == ["b", "a", "b"]
    parsed = columns(
        {"ids": ["a", "ü", ""], "bids": [1, None, 2.5], "objectives": ["click", None, "x"], "ctr": [1, 2, 3]}
    )
    assert parsed.ids == ["a", "ü", ""]
    np.testing.assert_array_equal(parsed.bids, [1.0, np.nan, 2.5])
    assert parsed.objectives == ["click", None, "x"]
    assert parsed.pair == {"ctr": [1, 2, 3]}


def test_bids_that_are_no_finite_number_never_pass_for_null():
    parsed = columns({"ids": ["a", "b", "c", "d"], "bids": [float("nan"), float("inf"), 10**400, -(10**400)]})
    assert not np.isnan(parsed.bids).any()
    assert not np.isfinite(parsed.bids).any()


@pytest.mark.parametrize("bids", [[], [2.5, 0.25], [2, 3.5], [0, 1.0], [1.5, None], [-0.0, 7], [2**80, 0.5]])
def test_numbers_are_bids_whatever_their_type(bids):
    wanted = [np.nan if bid is None else float(bid) for bid in bids]
    found = columns({"ids": ["a", "b"][: len(bids)], "bids": bids}).bids
    np.testing.assert_array_equal(found, np.array(wanted, np.float64))


@pytest.mark.parametrize("bids", [[2.5, False], [True, 3], [2.5, "3"], [{}, 2.5], [2.5, [3.0]]])
def test_what_is_no_number_is_no_bid(bids):
    position = next(at for at, bid in enumerate(bids) if type(bid) not in (int, float))
    with pytest.raises(RequestError, match=rf"candidates\.bids\[{position}\]: expected a number or null"):
        columns({"ids": ["a", "b"], "bids": bids})


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ({}, r"candidates\.ids: required"),
        ({"ids": "a"}, r"candidates\.ids: expected a list, got a string"),
        ({"ids": ["a", None]}, r"candidates\.ids\[1\]: expected a string, got null"),
        ({"ids": ["a", 12345678901234567890]}, r"candidates\.ids\[1\]: expected a string, got a number"),
        ({"ids": ["a"], "bids": 3}, r"candidates\.bids: expected a list, got a number"),
        ({"ids": ["a"], "bids": [1, 2]}, r"candidates\.bids: expected one value for each id: 1, got 2"),
        ({"ids": ["a"], "bids": [True]}, r"candidates\.bids\[0\]: expected a number or null, got a boolean"),
        ({"ids": ["a"], "objectives": [1]}, r"candidates\.objectives\[0\]: expected a string or null, got a number"),
        ({"ids": ["a"], "ctr": {}}, r"candidates\.ctr: expected a list, got an object"),
        (["a"] * 6, "candidates: at most 5 candidates, got 6"),
        ({"ids": ["a"] * 6}, r"candidates\.ids: at most 5 candidates, got 6"),
    ],
)
def test_wrong_candidates_name_their_place(candidates, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        columns(candidates)
