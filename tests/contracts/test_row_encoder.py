"""A row of a request is encoded as columns are: the same bits, the same findings, the same errors."""

import math
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from contracts.compiled import kernels as loaded_kernels
from contracts.compiled import prepare
from contracts.config import convert
from contracts.encoding import Encoder
from contracts.errors import RequestError
from contracts.moments import MAX_EPOCH_MS, MIN_EPOCH_MS
from contracts.query_in_body import QueryInBody, query_in_body
from contracts.row_encoder import RowEncoder
from contracts.rows import encode_row
from contracts.schema import FeatureSchema, Fitted

NOW_MS = 1_714_564_800_000
SCHEMA: dict[str, Any] = {
    "version": 1,
    "tasks": ["click"],
    "objectives": {"click": "click"},
    "tables": {
        "place": {"dim": 4, "vocabulary": ["DE", "1", "été"]},
        "video": {"dim": 8, "buckets": 1000},
    },
    "features": {
        "country": {"side": "query", "kind": "categorical", "table": "place"},
        "device": {"side": "query", "kind": "categorical", "table": "video"},
        "places": {"side": "query", "kind": "multi_categorical", "table": "place", "max_length": 3},
        "age": {"side": "query", "kind": "dense", "transform": "standardize", "default": 0.45},
        "raw": {"side": "query", "kind": "dense", "transform": "none"},
        "count": {"side": "query", "kind": "dense", "transform": "log1p"},
        "spent": {"side": "query", "kind": "dense", "transform": "log1p_standardize"},
        "visits": {"side": "query", "kind": "dense", "transform": "quantile", "buckets": 4},
        "image": {"side": "query", "kind": "embedding", "length": 3},
        "watch": {
            "side": "query",
            "kind": "sequence",
            "max_length": 4,
            "fields": {
                "video_id": {"kind": "categorical", "table": "video"},
                "place": {"kind": "categorical", "table": "place"},
                "time": {"kind": "age", "buckets": 12, "dim": 4},
            },
        },
    },
}
FITTED = {
    "age": Fitted(mean=0.4, std=0.1),
    "raw": Fitted(mean=3.0),
    "count": Fitted(mean=1.5),
    "spent": Fitted(mean=2.0, std=0.5),
    "visits": Fitted(edges=(0.0, 1.0, 4.0, 10.0)),
}


def _encoder() -> Encoder:
    unfitted = convert(SCHEMA, FeatureSchema, source="schema.yaml")
    features = {name: replace(feature, fitted=FITTED.get(name)) for name, feature in unfitted.features.items()}
    return Encoder(replace(unfitted, features=features), "query")


ENCODER = _encoder()
ROWS = RowEncoder(ENCODER)
needs_kernels = pytest.mark.skipif(not prepare(), reason="without compiled kernels every body is decoded")

WHOLE: dict[str, Any] = {
    "country": "DE",
    "device": "phone",
    "places": ["DE", "1"],
    **{"age": 0.5, "raw": 3, "count": 7.25, "spent": 1e3, "visits": 2},
    "image": [0.5, 1, 2],
    "watch": {"video_id": ["a", "b"], "place": ["DE", "x"], "time": [NOW_MS - 70_000, NOW_MS]},
}

texts = st.sampled_from(["DE", "1", "été", "", "x", "中国", "0"])
categories = texts | st.integers(-(2**70), 2**70) | st.booleans()
bad = st.sampled_from([1.5, {}, [], [[1]], "\ud800", {"a": 1}, math.nan, math.inf, 10**400, b"x"])
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5) | st.booleans()
times = (
    st.lists(st.integers(-(10**6), 10**10) | st.just(None), max_size=6)
    .map(lambda ages: sorted(ages, key=lambda age: -(age or 0)))
    .map(lambda ages: [None if age is None else NOW_MS - age for age in ages])
)


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    when = draw(times)
    if draw(st.booleans()):
        when = [
            value if value is None else str(np.datetime64(value, "ms")) + "Z" if draw(st.booleans()) else value
            for value in when
        ]
    count = len(when)
    listed = st.lists(categories | st.none(), min_size=count, max_size=count)
    fields = {"time": st.just(when), "video_id": listed, "place": listed | st.none(), "unknown": listed}
    kept = draw(st.sets(st.sampled_from(sorted(fields))))
    return {name: draw(fields[name]) for name in sorted(kept)}


VALUES = {
    "country": categories,
    "device": categories,
    "places": st.lists(categories | st.none(), max_size=5),
    **dict.fromkeys(("age", "raw", "count", "spent", "visits"), numbers),
    "image": st.lists(numbers, min_size=2, max_size=4),
    "watch": histories(),
    "unknown": categories,
}
queries = st.fixed_dictionaries({}, optional={name: values | st.none() for name, values in VALUES.items()})
broken = st.fixed_dictionaries({}, optional={name: values | bad for name, values in VALUES.items()})


def outcome(encode: Any, query: dict[str, Any]) -> Any:
    try:
        return encode(query)
    except RequestError as error:
        return str(error)


def plain(query: dict[str, Any]) -> Any:
    batch, _ = encode_row(ENCODER, query, event_time_us=NOW_MS * 1000)
    counts = batch.coverage.missing, batch.coverage.out_of_vocabulary
    found = [[name for name, count in of.items() if count] for of in counts]
    return batch.encoded.ids.tolist(), batch.encoded.floats.view(np.uint32).tolist(), *found


def compiled(query: dict[str, Any]) -> Any:
    row = ROWS.encode(query, event_time_us=NOW_MS * 1000)
    ids, floats = row.encoded.ids, row.encoded.floats
    assert (ids.dtype, floats.dtype) == (np.int32, np.float32)
    return ids.tolist(), floats.view(np.uint32).tolist(), row.missing, row.out_of_vocabulary


@settings(max_examples=500, deadline=None)
@given(queries)
def test_a_row_is_what_columns_of_one_row_are(query: dict[str, Any]) -> None:
    assert outcome(compiled, query) == outcome(plain, query)


@settings(max_examples=300, deadline=None)
@given(broken)
def test_wrong_values_are_refused_in_the_same_words(query: dict[str, Any]) -> None:
    assert outcome(compiled, query) == outcome(plain, query)


def in_body(query: dict[str, Any]) -> QueryInBody | None:
    """The features as they are found in a body."""
    kernels = loaded_kernels()
    assert kernels is not None
    body = msgspec.json.encode(query)
    return query_in_body(np.frombuffer(b":" + body + kernels.TAIL, np.uint8), 0, kernels)


@needs_kernels
@settings(max_examples=500, deadline=None)
@given(queries | broken)
def test_a_row_from_a_body_is_what_columns_of_one_row_are(query: dict[str, Any]) -> None:
    try:
        found = in_body(query)
    except (UnicodeEncodeError, OverflowError):  # no JSON can say so
        return
    if found is not None:
        assert found == found.decoded
        assert outcome(compiled, found) == outcome(plain, found.decoded)


@needs_kernels
def test_plans_are_written_as_the_loops_read_them() -> None:
    from contracts import lexicon, row_plan
    from contracts.kernels import texts, writing

    names = ("CATEGORICAL", "MULTI_CATEGORICAL", "DENSE", "EMBEDDING", "HISTORY", "HISTORY_IDS", "HISTORY_AGES")
    for name in (*names, "GIVEN", "OUTSIDE"):
        assert getattr(row_plan, name) == getattr(writing, name)
    assert lexicon.Lexicon([]).texts.tobytes() == b"01" + b"\0" * texts.PADDING


@needs_kernels
@pytest.mark.parametrize(
    ("change", "is_plain"),
    [
        ({}, True),
        ({"country": None, "device": True, "places": []}, True),
        ({"country": "XY", "device": -7, "places": ["DE", None, "?", 1, "x"]}, True),
        ({"image": [1, 2]}, False),
        ({"image": [1, True, 2.5]}, True),
        ({"country": 1.5}, False),
        ({"country": ["DE"]}, False),
        ({"places": "DE"}, False),
        ({"places": [1.5]}, False),
        ({"age": "1"}, False),
        ({"watch": []}, False),
        ({"watch": {}}, True),
        ({"watch": {"place": ["DE"] * 9}}, True),
        ({"watch": {"place": ["DE"], "video_id": ["x", "y"]}}, False),
        ({"watch": {"place": ["DE"], "video_id": None, "no": ["x", "y"], "time": [NOW_MS]}}, True),
        ({"watch": {"place": "DE"}}, False),
        ({"watch": {"place": [1.5]}}, False),
        ({"watch": {"time": [None, NOW_MS - 1, None, NOW_MS]}}, True),
        ({"watch": {"time": [NOW_MS, NOW_MS - 1]}}, False),
        ({"watch": {"time": [NOW_MS + 1]}}, False),
        ({"watch": {"time": [-(10**18)]}}, False),
        ({"watch": {"time": [MIN_EPOCH_MS, NOW_MS]}}, True),
        ({"watch": {"time": [MIN_EPOCH_MS - 1, NOW_MS]}}, False),
        ({"watch": {"time": [-MAX_EPOCH_MS]}}, False),
        ({"watch": {"time": ["2024-05-01T11:00:00Z"]}}, False),
        ({"no": {"place": ["DE"]}, "nothing": None}, True),
    ],
)
def test_what_is_plainly_right_is_written_from_the_body(change: dict[str, Any], is_plain: bool) -> None:
    query = in_body(WHOLE | change)
    assert query is not None
    assert (ROWS._in_body(query, NOW_MS * 1000, loaded_kernels()) is not None) == is_plain
    assert outcome(compiled, query) == outcome(plain, WHOLE | change)


@needs_kernels
@pytest.mark.parametrize(
    "more",
    [
        *('"country":"DE"', '"country":null', '"watch":{}', '"device":1,"device":2', '"no":1,"no":2'),
        *('"image":[1234567890123456789e22,0,0]', '"age":1234567890123456789e22', '"image":[1e22,-0.0,1e-27]'),
    ],
)
def test_of_two_values_the_last_counts_and_none_is_too_large(more: str) -> None:
    kernels = loaded_kernels()
    body = f':{{"country":"1","watch":{{"place":["DE"]}},{more}}}'.encode()
    query = query_in_body(np.frombuffer(body + kernels.TAIL, np.uint8), 0, kernels)
    assert query is not None
    assert outcome(compiled, query) == outcome(plain, msgspec.json.decode(body[1:]))


OUT_OF_RANGE = [
    *(-MAX_EPOCH_MS, -(2**63), -(2**63) - 1, 2**63, 10**30),
    *("0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"),
]


@pytest.mark.parametrize("with_kernels", [True, False])
@pytest.mark.parametrize("also", [[], [NOW_MS], ["2024-05-01T12:00:00Z"], [None]])
@pytest.mark.parametrize("moment", [MIN_EPOCH_MS, MIN_EPOCH_MS - 1, MAX_EPOCH_MS, MAX_EPOCH_MS + 1, *OUT_OF_RANGE])
def test_moments_are_those_of_the_years_1_to_9999(
    moment: Any, also: list[Any], with_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.compiled.kernels", loaded_kernels if with_kernels else lambda: None)
    query = {"watch": {"time": [moment, *also]}}
    got = outcome(compiled, query)
    assert got == outcome(plain, query)
    if found := in_body(query) if with_kernels and prepare() else None:
        assert outcome(compiled, found) == got
    refused = isinstance(got, str) and got.startswith("query.watch.time[0]: expected an RFC 3339 time with a zone")
    assert refused == (moment not in (MIN_EPOCH_MS, MAX_EPOCH_MS))


def test_regular_requests_never_take_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowEncoder, "_plain", None)
    compiled(
        {
            "country": "DE",
            "device": 7,
            "places": ["DE", None, True],
            "age": 0.1,
            "visits": 3,
            "image": [1, 2.5, 0],
            "watch": {"video_id": [1, 2], "place": ["x", None], "time": [NOW_MS - 9, NOW_MS]},
        }
    )


@pytest.mark.parametrize("time", [[NOW_MS - 9, NOW_MS], ["2024-05-01T11:00:00Z", "2024-05-01T12:00:00Z"], [1, None]])
def test_a_row_is_written_once_however_times_are_told(time: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare() or not find_spec("numba")
    passes, write = [], RowEncoder._written
    monkeypatch.setattr(RowEncoder, "_written", lambda *given: passes.append(given) or write(*given))
    query = {"device": "x", "watch": {"video_id": ["a", "b"], "place": ["DE", "x"], "time": time}}
    assert compiled(query) == plain(query)
    assert len(passes) == 1


def test_a_float_is_no_category_though_it_equals_one_that_was_seen() -> None:
    compiled({"country": True})
    with pytest.raises(RequestError, match="expected text, an integer or a boolean, got 1.0"):
        compiled({"country": 1.0})
