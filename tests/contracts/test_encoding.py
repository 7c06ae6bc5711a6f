import datetime as dt
import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.encoding import Coverage, Encoded, EncodedBatch, Encoder
from contracts.errors import ConfigError, LogError
from contracts.hashing import hash_ids
from contracts.schema import Feature, FeatureSchema, Table

REQUEST_TIME = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
AGE_EDGES_S = np.geomspace(60, 365 * 24 * 3600, 8).round()  # 12 buckets: three reserved ids, nine intervals

TYPES = {
    "country": pa.string(),
    "user_ctr": pa.float64(),
    "visits": pa.int64(),
    "watch.tag": pa.list_(pa.string()),
    "watch.time": pa.list_(pa.timestamp("ms", "UTC")),
    "watch.video_id": pa.list_(pa.int64()),
    "video_id": pa.int64(),
    "tags": pa.list_(pa.string()),
    "price": pa.float32(),
    "image": pa.list_(pa.float32()),
}


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    names = rows[0].keys()
    return pa.table({name: pa.array([row[name] for row in rows], TYPES[name]) for name in names})


def times(count: int) -> np.ndarray:
    return np.full(count, (REQUEST_TIME - EPOCH) // MICROSECOND)


def encode(encoder: Encoder, rows: list[dict[str, Any]], **options: Any) -> EncodedBatch:
    return encoder.encode(table_of(rows), event_time=times(len(rows)), **options)


# A plain encoder, one value at a time, that knows nothing of Arrow or of slices.


def plain_id(value: object, table: Table) -> int:
    if value is None:
        return 1
    text = str(value)
    if table.vocabulary is None:
        return int(hash_ids([text], table.num_rows)[0])
    return 3 + table.vocabulary.index(text) if text in table.vocabulary else 2


def plain_age(event: dt.datetime | None) -> int:
    if event is None:
        return 1
    age_s = (REQUEST_TIME - event).total_seconds()
    return 3 + sum(age_s >= edge for edge in AGE_EDGES_S)


def padded(ids: list[int], length: int) -> list[int]:
    return ids + [0] * (length - len(ids))


def plain_query(schema: FeatureSchema, row: dict[str, Any]) -> tuple[list[int], list[float]]:
    lists = {name: row[f"watch.{name}"] for name in ("tag", "time", "video_id")}
    events = max(len(values) for values in ([], *(one for one in lists.values() if one is not None)))
    newest = {
        name: ([None] * events if values is None else values)[::-1][: schema.features["watch"].max_length]
        for name, values in lists.items()
    }
    ids = [plain_id(row["country"], schema.tables["country"])]
    ids += padded([plain_id(value, schema.tables["tag"]) for value in newest["tag"]], 4)
    ids += padded([plain_age(value) for value in newest["time"]], 4)
    ids += padded([plain_id(value, schema.tables["video"]) for value in newest["video_id"]], 4)
    ctr = 0.45 if row["user_ctr"] is None else row["user_ctr"]
    visits = 0.0 if row["visits"] is None else float(np.interp(row["visits"], [0, 1, 4, 10], [-1, -1 / 3, 1 / 3, 1]))
    return ids, [(ctr - 0.4) / 0.1, visits]


def plain_ad(schema: FeatureSchema, row: dict[str, Any]) -> tuple[list[int], list[float]]:
    tags = [None] if row["tags"] is None else row["tags"][:3]
    ids = padded([plain_id(tag, schema.tables["tag"]) for tag in tags], 3)
    ids.append(plain_id(row["video_id"], schema.tables["video"]))
    price = 0.0 if row["price"] is None else (math.log1p(row["price"]) - 2.0) / 0.5
    return ids, [*(row["image"] or [0.0, 0.0, 0.0]), price]


maybe = lambda values: st.none() | values  # noqa: E731
TAGS = st.sampled_from(["1", "39", "été", "ete", "9", ""])
AGES_MS = st.lists(st.integers(0, 2**36), max_size=7)
SIZES = st.integers(1, 5)


@st.composite
def query_rows(draw: st.DrawFn) -> dict[str, Any]:
    ages = sorted(draw(AGES_MS), reverse=True)
    events = [REQUEST_TIME - dt.timedelta(milliseconds=age) for age in ages]
    count = len(events)
    columns = {
        "watch.tag": draw(maybe(st.lists(maybe(TAGS), min_size=count, max_size=count))),
        "watch.time": draw(maybe(st.just([draw(maybe(st.just(event))) for event in events]))),
        "watch.video_id": draw(maybe(st.lists(maybe(st.integers(-5, 5)), min_size=count, max_size=count))),
    }
    return {
        "country": draw(maybe(st.sampled_from(["DE", "FR", "中国", "de", "", "中"]))),
        "user_ctr": draw(maybe(st.floats(-1e3, 1e3))),
        "visits": draw(maybe(st.integers(-3, 20))),
        **columns,
    }


@st.composite
def ad_rows(draw: st.DrawFn) -> dict[str, Any]:
    numbers = st.floats(-100, 100, width=32)
    return {
        "tags": draw(maybe(st.lists(maybe(TAGS), max_size=5))),
        "video_id": draw(maybe(st.integers(-(2**63), 2**63 - 1))),
        "price": draw(maybe(st.floats(0, 1e4, width=32))),
        "image": draw(maybe(st.lists(numbers, min_size=3, max_size=3))),
    }


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(query_rows(), min_size=1, max_size=90))
def test_a_query_batch_equals_the_plain_encoder_row_by_row(schema: FeatureSchema, rows: list[dict[str, Any]]) -> None:
    encoded = encode(Encoder(schema, "query"), rows).encoded
    for at, row in enumerate(rows):
        ids, floats = plain_query(schema, row)
        assert encoded.ids[at].tolist() == ids
        np.testing.assert_allclose(encoded.floats[at], floats, rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ad_rows(), min_size=1, max_size=90))
def test_an_ad_batch_equals_the_plain_encoder_row_by_row(schema: FeatureSchema, rows: list[dict[str, Any]]) -> None:
    encoded = encode(Encoder(schema, "ad"), rows).encoded
    for at, row in enumerate(rows):
        ids, floats = plain_ad(schema, row)
        assert encoded.ids[at].tolist() == ids
        np.testing.assert_allclose(encoded.floats[at], floats, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(query_rows(), min_size=1, max_size=90))
def test_a_batch_equals_its_rows_one_by_one_to_the_bit(schema: FeatureSchema, rows: list[dict[str, Any]]) -> None:
    encoder = Encoder(schema, "query")
    whole = encode(encoder, rows).encoded
    for at, row in enumerate(rows):
        single = encode(encoder, [row]).encoded
        np.testing.assert_array_equal(single.ids[0], whole.ids[at])
        np.testing.assert_array_equal(single.floats[0], whole.floats[at])


def test_slices_chunks_and_mappings_give_the_same(schema: FeatureSchema, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"tags": ["1", "x"] * (at % 3), "video_id": at % 40, "price": at / 7, "image": [at, 0.5, -1]}
        for at in range(500)
    ]
    table, encoder = table_of(rows), Encoder(schema, "ad")
    whole = encoder.encode(table)
    monkeypatch.setattr("contracts.encoding._ROWS_AT_ONCE", 64)
    chunked = pa.concat_tables([table.slice(0, 100), table.slice(100, 0), table.slice(100, 33), table.slice(133)])
    batch = table.combine_chunks().to_batches()[0]
    for columns in (table, chunked, batch, {name: table.column(name) for name in table.column_names}):
        got = encoder.encode(columns)
        np.testing.assert_array_equal(got.encoded.ids, whole.encoded.ids)
        np.testing.assert_array_equal(got.encoded.floats, whole.encoded.floats)
        assert got.coverage == whole.coverage


def test_padding_missing_and_out_of_vocabulary_are_distinct(schema: FeatureSchema) -> None:
    rows = [
        {"tags": ["39"], "video_id": 1, "price": 1.0, "image": None},
        {"tags": ["unheard"], "video_id": 2, "price": 1.0, "image": None},
        {"tags": None, "video_id": None, "price": None, "image": None},
        {"tags": [], "video_id": 3, "price": 1.0, "image": [1.0, 2.0, 3.0]},
        {"tags": [None, "unheard", "été", "1"], "video_id": 3, "price": 1.0, "image": None},
    ]
    batch = encode(Encoder(schema, "ad"), rows)
    assert batch.encoded.ids[:, :3].tolist() == [[4, 0, 0], [2, 0, 0], [1, 0, 0], [0, 0, 0], [1, 2, 5]]
    assert batch.encoded.ids[2, 3] == 1
    assert (batch.encoded.ids[[0, 1, 3, 4], 3] >= 3).all()
    assert batch.coverage == Coverage(
        5, missing={"tags": 1, "video_id": 1, "price": 1, "image": 4}, out_of_vocabulary={"tags": 2}
    )
    assert not batch.invalid.any()


def test_coverage_merges() -> None:
    left = Coverage(2, {"a": 1}, {"v": 1})
    assert left.merge(Coverage(3, {"a": 2, "b": 1}, {})) == Coverage(5, {"a": 3, "b": 1}, {"v": 1})


GOOD_AD = {"tags": ["1"], "video_id": 1, "price": 1.0, "image": [1.0, 2.0, 3.0]}
BAD_ADS = [
    ({"price": math.nan}, "price", "NaN", "got NaN"),
    ({"price": math.inf}, "price", "infinity", "got Infinity"),
    ({"image": [1.0, math.nan, 2.0]}, "image", "NaN", r"got \[1.0, NaN, 2.0\]"),
    ({"image": [1.0, None, 2.0]}, "image", "expected a finite number or null", r"got \[1.0, null, 2.0\]"),
    ({"image": [1.0, -math.inf, 2.0]}, "image", "infinity", r"got \[1.0, -Infinity, 2.0\]"),
    ({"image": [1.0]}, "image", "expected 3 numbers or null", r"got \[1.0\]"),
    ({"image": []}, "image", "expected 3 numbers or null", r"got \[\]"),
]


@pytest.mark.parametrize(("change", "column", "rule", "got"), BAD_ADS)
def test_a_row_that_breaks_a_rule_is_refused_by_name_or_marked_and_emptied(
    schema: FeatureSchema, change: dict[str, Any], column: str, rule: str, got: str
) -> None:
    rows, encoder = [GOOD_AD, {**GOOD_AD, **change}, GOOD_AD, {**GOOD_AD, **change}], Encoder(schema, "ad")
    with pytest.raises(
        LogError, match=f"^ads/part.parquet: column '{column}' .*{got} in row 1 \\(2 such rows so far\\)"
    ):
        encode(encoder, rows, source="ads/part.parquet")
    batch = encode(encoder, rows, invalid="mark")
    assert batch.invalid.tolist() == [False, True, False, True]
    assert (batch.encoded.ids[1] == 0).all()
    assert (batch.encoded.floats[1] == 0).all()
    np.testing.assert_array_equal(batch.encoded.ids[0], encode(encoder, [GOOD_AD]).encoded.ids[0])
    assert batch.encoded.floats[2].tolist() == encode(encoder, [GOOD_AD]).encoded.floats[0].tolist()
    (fault,) = batch.faults
    assert (fault.column, fault.row, fault.count) == (column, 1, 2)
    assert rule in fault.rule


def test_faults_are_summed_over_slices(schema: FeatureSchema, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contracts.encoding._ROWS_AT_ONCE", 4)
    rows = [dict(GOOD_AD) for _ in range(10)]
    rows[3]["price"] = rows[9]["price"] = math.nan
    rows[5]["image"] = [1.0]
    batch = encode(Encoder(schema, "ad"), rows, invalid="mark")
    assert np.flatnonzero(batch.invalid).tolist() == [3, 5, 9]
    assert {(fault.column, fault.row, fault.count) for fault in batch.faults} == {("price", 3, 2), ("image", 5, 1)}
    with pytest.raises(LogError, match="in row 3"):
        encode(Encoder(schema, "ad"), rows)


@pytest.mark.parametrize("transform", ["none", "log1p"])
def test_no_value_beyond_float32_leaves_the_encoder(transform: str) -> None:
    feature = Feature(side="ad", kind="dense", transform=transform, default=0.0)  # type: ignore[arg-type]
    schema = FeatureSchema(tasks=("click",), objectives={"click": "click"}, features={"x": feature})
    batch = Encoder(schema, "ad").encode({"x": pa.array([1e300, -1e300, 1.0])}, invalid="mark")
    assert np.isfinite(batch.encoded.floats).all()
    assert batch.invalid.tolist() == ([True, True, False] if transform == "none" else [False, False, False])


def test_an_infinity_does_not_hide_behind_a_bounded_transform(schema: FeatureSchema) -> None:
    row = {"country": "DE", "user_ctr": 0.1, "visits": None}
    columns = {name: pa.array([value], TYPES[name]) for name, value in row.items()}
    columns["visits"] = pa.array([math.inf])
    batch = Encoder(schema, "query").encode(columns, event_time=times(1), absent="missing", invalid="mark")
    assert batch.invalid.tolist() == [True]


def test_absent_columns_are_an_error_or_missing(schema: FeatureSchema) -> None:
    encoder = Encoder(schema, "ad")
    expected = "^ads: column 'tags', 'price' is missing, expected for side 'ad' of the schema"
    columns = {"video_id": pa.array([1, 2]), "image": pa.nulls(2)}
    with pytest.raises(LogError, match=expected):
        encoder.encode(columns, source="ads")
    absent = encoder.encode(columns, absent="missing")
    nulls = encoder.encode({**columns, "tags": pa.nulls(2), "price": pa.nulls(2)})
    np.testing.assert_array_equal(absent.encoded.ids, nulls.encoded.ids)
    np.testing.assert_array_equal(absent.encoded.floats, nulls.encoded.floats)
    assert absent.coverage.missing == nulls.coverage.missing == {"tags": 2, "video_id": 0, "image": 2, "price": 2}


def test_no_column_at_all_is_missing_everywhere(schema: FeatureSchema) -> None:
    batch = Encoder(schema, "query").encode({}, num_rows=3, event_time=times(3), absent="missing")
    assert batch.encoded.ids.tolist() == [[1] + [0] * 12] * 3
    np.testing.assert_allclose(batch.encoded.floats, [[0.5, 0.0]] * 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("column", "array", "message"),
    [
        ("video_id", pa.array([1.5]), "has type double, expected text, integers or booleans"),
        ("tags", pa.array(["1"]), "has type string, expected a list of text, integers or booleans"),
        ("tags", pa.array([[1.5]]), "has type double, expected text, integers or booleans"),
        ("price", pa.array(["1.5"]), "has type string, expected numbers"),
        ("image", pa.array([1.0]), "has type double, expected a list of numbers"),
        ("image", pa.array([["a"]]), "has type string, expected numbers"),
    ],
)
def test_a_wrong_arrow_type_is_refused_by_column(
    schema: FeatureSchema, column: str, array: pa.Array, message: str
) -> None:
    columns = {name: table_of([GOOD_AD]).column(name) for name in GOOD_AD}
    for mode in ("raise", "mark"):
        with pytest.raises(LogError, match=f"^ads/a.parquet: column '{column}' {message}$"):
            Encoder(schema, "ad").encode({**columns, column: array}, invalid=mode, source="ads/a.parquet")  # type: ignore[arg-type]


def test_columns_of_different_lengths_are_refused(schema: FeatureSchema) -> None:
    columns = {"video_id": pa.array([1, 2]), "price": pa.array([1.0])}
    with pytest.raises(
        LogError, match=r"column 'price' has 1 rows, expected 2|column 'video_id' has 2 rows, expected 1"
    ):
        Encoder(schema, "ad").encode(columns, absent="missing")


def test_text_that_is_not_utf8_is_refused(schema: FeatureSchema) -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(LogError, match="column 'country' cannot be read"):
        Encoder(schema, "query").encode({"country": broken}, event_time=times(1), absent="missing")


def test_an_unfitted_schema_is_refused(unfitted: FeatureSchema) -> None:
    with pytest.raises(ConfigError, match="adsieve schema fit"):
        Encoder(unfitted, "query")


def test_rows_are_taken_by_position_or_mask() -> None:
    encoded = Encoded(np.arange(6, dtype=np.int32).reshape(3, 2), np.arange(3, dtype=np.float32).reshape(3, 1))
    assert len(encoded) == 3
    assert encoded.take(np.array([2, 0, 0])).ids.tolist() == [[4, 5], [0, 1], [0, 1]]
    assert encoded.take(np.array([False, True, False])).floats.tolist() == [[1.0]]


def test_no_rows_are_encoded_to_no_rows(schema: FeatureSchema) -> None:
    columns = table_of([GOOD_AD]).slice(0, 0)
    batch = Encoder(schema, "ad").encode(columns)
    assert batch.encoded.ids.shape == (0, 4)
    assert batch.encoded.floats.shape == (0, 4)
    assert batch.coverage.rows == 0


def test_ids_stay_inside_their_table(schema: FeatureSchema) -> None:
    small = msgspec.structs.replace(schema, tables={**schema.tables, "video": Table(dim=1, buckets=5)})
    ids = Encoder(small, "ad").encode({"video_id": pa.array(range(1000))}, absent="missing").encoded.ids[:, 3]
    assert set(ids.tolist()) == {3, 4}
