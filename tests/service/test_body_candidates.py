"""A request whose candidates are cut out of its body is the request that decoding all of the body gives."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts import compiled
from contracts.errors import InputError, RequestError
from indexing.id_keys import text_keys
from indexing.id_texts import IdTexts
from service import body_candidates
from service.api import RankRequest
from service.body_candidates import decode_cut
from service.wire import CandidateColumns, candidate_columns, decode_request

pytest.importorskip("numba")

DECODER = msgspec.json.Decoder(RankRequest)
BEGIN = b'{"scenario":"s","query":{"country":"DE"},'

SPACE = st.sampled_from(["", "", "", " ", "\n\t", "\r  "])
PLAIN = st.from_regex(r"[ !#-\[\]-~]{0,20}", fullmatch=True) | st.sampled_from(["a" * 16, "b" * 17, "c" * 70])
QUOTED = (
    PLAIN.map(lambda text: f'"{text}"')
    | PLAIN.map(lambda text: f'"{text}"')
    | st.text().map(lambda text: msgspec.json.encode(text.encode("utf-8", "ignore").decode()).decode())
)
ODD = st.sampled_from(
    ["null", "true", "1", '"\\u0061"', '"a\\n"', '"\\', "{}", "[]", '[["a"]]', '"\t"', "01", "-0", "1e400", "", ","]
)
NUMBER = (
    st.floats(0, 1e9).map(repr)
    | st.integers(-5, 10**20).map(str)
    | st.just("null")
    | st.sampled_from(["1E5", "-0.0", "0.10", "2e-3"])
)


def listed(items: st.SearchStrategy[str], size: int) -> st.SearchStrategy[str]:
    parts = st.lists(st.tuples(SPACE, items, SPACE).map("".join), min_size=size, max_size=size)
    return parts.map(lambda parts: f"[{','.join(parts)}]")


@st.composite
def candidates(draw: st.DrawFn) -> str:
    """A list of ids or columns; one of four has something in it that is not plain."""
    size, odd = draw(st.integers(0, 6)), draw(st.integers(0, 3)) == 0
    ids = draw(listed(QUOTED | ODD if odd else PLAIN.map(lambda text: f'"{text}"'), size))
    if draw(st.booleans()):
        return ids
    columns = [("ids", ids)]
    if draw(st.booleans()):
        columns.append(("bids", draw(listed(NUMBER | ODD if odd else NUMBER, size))))
    if draw(st.booleans()):
        columns.append(("objectives", draw(listed(st.sampled_from(['"click"', "null"]), size))))
    if draw(st.booleans()):
        columns.append(
            (draw(st.sampled_from(["ctr", "ids", "id\\u0073"] if odd else ["ctr"])), draw(listed(NUMBER, size)))
        )
    parts = [
        f'{draw(SPACE)}"{name}"{draw(SPACE)}:{draw(SPACE)}{column}' for name, column in draw(st.permutations(columns))
    ]
    return f"{{{','.join(parts)}{draw(SPACE)}}}"


def told(request: RankRequest) -> CandidateColumns | str | None:
    try:
        given = request.candidates
        return None if given is None else candidate_columns(given, max_candidates=5)
    except RequestError as error:
        return str(error)


def check_equal(cut: RankRequest, whole: RankRequest) -> None:
    for field in RankRequest.__struct_fields__:
        if field != "candidates":
            assert getattr(cut, field) == getattr(whole, field)
    ours, wanted = told(cut), told(whole)
    if not isinstance(ours, CandidateColumns) or not isinstance(wanted, CandidateColumns):
        assert ours == wanted
        return
    assert list(ours.ids) == list(wanted.ids)
    assert ours.objectives == wanted.objectives
    assert ours.pair == wanted.pair
    assert (ours.bids is None) == (wanted.bids is None)
    if ours.bids is not None and wanted.bids is not None:
        assert ours.bids.tobytes() == wanted.bids.tobytes()
    keys = text_keys(list(wanted.ids))
    np.testing.assert_array_equal(ours.keys.hashes, keys.hashes)
    np.testing.assert_array_equal(ours.keys.heads, keys.heads)
    assert [ours.keys.text(place) for place in range(len(keys))] == [ad_id.encode() for ad_id in wanted.ids]


def check(body: bytes) -> bool:
    """Whether candidates were cut out of the body; then the request is that of the whole body."""
    assert compiled.prepare()
    cut = decode_cut(body, DECODER, min_bytes=0)
    if cut is None:
        return False
    check_equal(cut, DECODER.decode(body))
    given = cut.candidates
    return any(
        isinstance(part, IdTexts | np.ndarray) for part in (given.values() if isinstance(given, dict) else [given])
    )


@settings(max_examples=150, deadline=None)
@given(candidates(), SPACE, SPACE, st.sampled_from(["", ',"limit":3', ',"query":{}', ',"candidates":["x"]', ',"no":1']))
def test_cut_out_candidates_are_those_of_the_whole_body(given: str, before: str, after: str, more: str) -> None:
    check(BEGIN + f'"candidates"{before}:{after}{given}{more}}}'.encode("utf-8", "surrogatepass"))


@settings(max_examples=150, deadline=None)
@given(candidates(), st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=2), st.integers(0, 2)), max_size=3))
def test_changed_bytes_are_found_or_left_to_the_decoder(given: str, changes: list[tuple[int, bytes, int]]) -> None:
    body = BEGIN + f'"candidates":{given}}}'.encode("utf-8", "surrogatepass")
    for place, put, dropped in changes:
        place %= len(body)
        body = body[:place] + put + body[place + dropped :]
    check(body)


@pytest.mark.parametrize(
    "candidates",
    [
        b'["a","b"]',
        b"[]",
        b' [ "a" , "b" ] ',
        b'{"ids":["a","b"]}',
        b'{ "bids" : [ 1.5 , null ] , "ids" : ["a","b"] }',
        b'{"ids":["a"],"bids":[12345678901234567890],"objectives":["click"],"ctr":[0.5],"x":[[1,"]\\""]]}',
        b'{"ids":["\xc3\xbc","a\\n"],"bids":[1,2]}',
    ],
)
def test_what_is_plainly_right_is_cut_out(candidates: bytes) -> None:
    assert check(BEGIN + b'"candidates":' + candidates + b',"limit":3}')
    assert check(b'{"candidates":' + candidates + b',"scenario":"s","query":{"candidates":["c"]}}')


@pytest.mark.parametrize(
    "rest",
    [
        b'"candidates":["a"],"candidates":["b"]}',
        b'"candidates":["a"],"c\\u0061ndidates":["b"]}',
        b'"candidates":["a"],"candidates":null}',
        b'"query":{"candidates":["a"]}}',
        b'"query":{"candidates":["a"]},"candidates":["b"]}',
        b'"candidates":["\xff"]}',
        b'"candidates":{"ids":["a"],"ids":["b"]}}',
        b'"candidates":{"ids":["a"],"x":["\xff"]}}',
        b'"candidates":{"ids":["a"],"x":[1,]}}',
        b'"candidates":["a"],"limit":0}',
        b'"candidates":["a"]',
        b'"candidates":["a"]} ]',
        b'"candidates":["a\x00b"]}',
        b'"candidates":["a"',
        b'"candidates":["a\\',
        b'"candidates":["a',
        b'"candidates":{"ids":["a"],"x":["\\',
        b'"candidates":{"ids":["a"],"x":["',
        b'"candidates":{"ids":["a"],"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}}",
        b'"candidates":{"ids":["a"]' + b',"x":[]' * 70 + b"}}",
        b'"candidates":{}}',
        b'"candidates":[1]}',
        b'"candidates"',
        b'"candidates": ',
    ],
)
def test_what_is_not_plain_is_left_to_the_decoder(rest: bytes) -> None:
    assert not check(BEGIN + rest)


def test_a_field_that_comes_earlier_is_checked_too() -> None:
    """The first of two is the one that is cut out, the last one counts."""
    body = b'{"c\\u0061ndidates":[1],"candidates":["a"],"scenario":"s","query":{}}'
    assert not check(body)
    with pytest.raises(RequestError, match=r"candidates\[0\]"):
        decode_request(body)


def test_a_long_body_is_refused_as_any_other() -> None:
    ids = ",".join(f'"ad-{number}"' for number in range(500)).encode()
    with pytest.raises(RequestError, match=r"^limit: "):
        decode_request(BEGIN + b'"candidates":[' + ids + b'],"limit":0}')
    with pytest.raises(InputError, match="Invalid UTF-8"):
        decode_request(BEGIN + b'"candidates":[' + ids + b',"\xff"]}')
    found = decode_request(BEGIN + b'"candidates":[' + ids + b"]}").candidates
    assert isinstance(found, IdTexts)
    assert found == [f"ad-{number}" for number in range(500)]


def test_a_body_that_ends_anywhere_is_left_to_the_decoder() -> None:
    body = BEGIN + b'"candidates":{"ids":["a","' + b"b" * 20 + b'"],"bids":[1.5,null],"x":[["\\u00e4"]]}}'
    assert check(body)
    assert not any(check(body[:length]) for length in range(len(body)))


def test_short_ids_get_room() -> None:
    ids = ",".join(['""'] * 400 + ['"a"'] * 400).encode()
    assert check(BEGIN + b'"candidates":[' + ids + b"]}")
    assert check(BEGIN + b'"candidates":{"bids":[' + b",".join([b"1"] * 800) + b'],"ids":[' + ids + b"]}}")


@pytest.mark.parametrize("ids", [b'""', b'"ad-1234567"'])
def test_a_list_beyond_all_limits_is_left_to_the_decoder(monkeypatch: pytest.MonkeyPatch, ids: bytes) -> None:
    monkeypatch.setattr(body_candidates, "_MAX_IDS", 50)
    for count, is_cut in ((50, True), (51, False), (500, False)):
        listed = b"[" + b",".join([ids] * count) + b"]"
        assert check(BEGIN + b'"candidates":' + listed + b"}") == is_cut
        assert check(BEGIN + b'"candidates":{"ids":' + listed + b',"bids":[1]}}') == is_cut


def test_without_kernels_all_of_the_body_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_loaded", None)
    assert not check_without(BEGIN + b'"candidates":["a"]}')


def check_without(body: bytes) -> Any:
    return body_candidates.decode_cut(body, DECODER, min_bytes=0)


@settings(max_examples=50, deadline=None)
@given(st.lists(PLAIN, max_size=20), st.lists(st.integers(0, 19), max_size=30))
@example([""], [0])
def test_texts_at_places(texts: list[str], places: list[int]) -> None:
    chosen = [place for place in places if place < len(texts)]
    ids = IdTexts(text_keys(texts))
    assert ids.at(np.array(chosen, np.int64)) == [texts[place] for place in chosen]
    assert ids == texts
    assert [*ids, len(ids)] == [*texts, len(texts)]
    assert ids != [*texts, "more"]
