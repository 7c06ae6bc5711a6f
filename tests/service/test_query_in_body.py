"""Features that are found in a body are those that decoding it gives; unknown names and long lists are found alike."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import compiled
from contracts.errors import RequestError
from contracts.query_in_body import QueryInBody
from service.api import RankRequest
from service.body_candidates import decode_cut
from service.features import check_lengths, note_unknown
from service.settings import Settings

pytest.importorskip("numba")

DECODER = msgspec.json.Decoder(RankRequest)
KNOWN = frozenset(
    {"query.a", "query.b", "query.watch", "query.watch.id", "query.watch.time", "query.a.b", "candidates.x"}
)

MORE = ["", ',"limit":3', ',"query":{}', ',"candidates":["x"]', ',"candidates":{"query":[]}']

SPACE = st.sampled_from(["", "", "", " ", "\n\t"])
NAME = st.sampled_from(["a", "b", "watch", "id", "time", "a.b", "", "query", "candidates", "no"])
PLAIN = st.sampled_from(['"x"', '""', '"a longer text, of more than thirty-two bytes"', "null", "true", "false"])
NUMBER = st.integers(-(10**19), 10**19).map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
ODD = st.sampled_from(
    ["-0", "01", "1e5", "0.10", "tru", "nulL", "falsy", "1.", '"\\u0061"', '"é"', "", "[[1]]", "{}", "+1"]
)


@st.composite
def objects(draw: st.DrawFn, depth: int = 0) -> str:
    """An object of JSON, in one of four of which something may be odd."""
    item = PLAIN | NUMBER if draw(st.integers(0, 3)) else PLAIN | NUMBER | ODD
    lists = st.lists(st.tuples(SPACE, item, SPACE).map("".join), max_size=4).map(lambda items: f"[{','.join(items)}]")
    value = item | lists | objects(depth + 1) if depth < 2 else item
    parts = draw(st.lists(st.tuples(SPACE, NAME, SPACE, SPACE, value, SPACE), max_size=5))
    space = draw(SPACE)
    listed = ",".join(f'{one}"{name}"{two}:{three}{text}{four}' for one, name, two, three, text, four in parts)
    return f"{{{space}{listed}}}"


def decoded(body: bytes) -> Any:
    try:
        return DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def check(body: bytes) -> RankRequest | None:
    """The request whose features were found in a body; they are those of the whole body."""
    assert compiled.prepare()
    cut = decode_cut(body, DECODER, min_bytes=0)
    if cut is None or not isinstance(cut.query, QueryInBody):
        return None
    whole = decoded(body)
    assert whole is not None
    assert repr(cut.query) == repr(whole.query)  # 1 is not 1.0, nor true
    assert (list(cut.query), len(cut.query)) == (list(whole.query), len(whole.query))
    for field in ("scenario", "limit", "request_id"):
        assert getattr(cut, field) == getattr(whole, field)
    return cut


def told(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except RequestError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(
    objects(), st.sampled_from(["", ',"limit":3', ',"query":{}', ',"candidates":["x"]', ',"candidates":{"query":[]}'])
)
def test_features_in_a_body_are_those_of_the_decoded_body(query: str, more: str) -> None:
    body = f'{{"scenario":"s","query":{query}{more}}}'.encode()
    cut = check(body)
    if cut is None:
        return
    releases: Any = [SimpleNamespace(known_features=KNOWN, scenario="s")]
    for policy in ("warn", "refuse"):
        asked = Settings.model_construct(ab={}, unknown_features=policy)
        for pair in ({}, {"x": []}, {"y": []}):
            ours = told(note_unknown, cut.query, pair, releases, asked)
            assert ours == told(note_unknown, dict(cut.query), pair, releases, asked)
    for longest in range(4):
        assert told(check_lengths, cut.query, longest) == told(check_lengths, dict(cut.query), longest)


@settings(max_examples=300, deadline=None)
@given(objects(), st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=2), st.integers(0, 2)), max_size=3))
def test_changed_bytes_are_found_or_left_to_the_decoder(query: str, changes: list[tuple[int, bytes, int]]) -> None:
    body = f'{{"query":{query},"candidates":["a","b"],"scenario":"s"}}'.encode()
    for place, put, dropped in changes:
        place %= len(body)
        body = body[:place] + put + body[place + dropped :]
    check(body)


@pytest.mark.parametrize(
    "query",
    [
        "{}",
        '{ "a" : 1 , "b" : [ ] }',
        '{"a":"x","b":[1,2.5,null,true],"watch":{"id":["x"],"time":[1]},"no":{}}',
        '{"watch":{},"candidates":["x"],"query":null}',
    ],
)
def test_plain_features_are_found(query: str) -> None:
    assert check(f'{{"scenario":"s","query":{query},"candidates":["x"]}}'.encode()) is not None
    assert (
        check(f'{{"candidates":{{"ids":["x"],"query":[1]}},"scenario":"s","limit":3,"query":{query}}}'.encode()) is None
    )
    assert check(f'{{"candidates":["x"],"scenario":"s","limit":3,"query" : {query}}}'.encode()) is not None


@pytest.mark.parametrize(
    "query",
    [
        '{"a":1,}',
        '{"a":1',
        '{"a"',
        '{"a":{"b":{}}}',
        '{"a":[[]]}',
        '{"a":[1,]}',
        '{"a":"\\n"}',
        '{"a":"é"}',
        '{"a":-0}',
        '{"a":12345678901234567890123}',
        '{"a":1},"query":{"b":2}',
        '{"a":1},"qu\\u0065ry":{"b":2}',
        "[]",
        "null",
    ],
)
def test_what_is_not_plain_is_left_to_the_decoder(query: str) -> None:
    assert check(f'{{"scenario":"s","query":{query}}}'.encode()) is None


def test_a_body_that_ends_anywhere_is_left_to_the_decoder() -> None:
    body = b'{"scenario":"s","query":{"a":"x","b":[1,2.5,null,true],"watch":{"id":["x"],"time":[1]},"no":{}}}'
    assert check(body) is not None
    assert not any(check(body[:length]) for length in range(len(body)))


def test_many_values_get_room_or_are_left_to_the_decoder() -> None:
    few, many = [",".join(f'"{number}":1' for number in range(count)) for count in (500, 2_000)]
    for query, is_found in ((few, True), (many, False), (f'"a":[{",".join(["1"] * 5_000)}]', True)):
        assert (check(f'{{"scenario":"s","query":{{{query}}}}}'.encode()) is not None) == is_found
