"""One thing of a sound log is broken at a time; the report names exactly that: file, row group, row, column, rule."""

import io
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from adlogs.fault_table import report_table
from adlogs.faults import DatasetCount, LogFault
from adlogs.fit import fit_log
from adlogs.log_slices import NOT_READABLE, ROWS_AT_ONCE
from adlogs.rules_ads import TIED
from adlogs.rules_candidates import MIXED_TEACHERS, NO_TEACHER_VERSION
from adlogs.rules_columns import DIFFERING_TYPE, MISSING_COLUMN, NAIVE_TIME, NULL, WRONG_TYPE
from adlogs.rules_outcomes import NOT_PROBABILITY
from adlogs.rules_pairs import NO_AD_YET, NOT_CONTIGUOUS, REPEATED_PAIR, UNKNOWN_AD, UNKNOWN_REQUEST
from adlogs.rules_requests import REPEATED_REQUEST
from adlogs.rules_values import (
    BAD_BID,
    BAD_PROPENSITY,
    BAD_WEIGHT,
    BROKEN_CHAIN,
    NO_SCENARIO,
    NOT_BINARY,
    NOT_FINITE_LOGIT,
    NOT_SHOWN,
    UNKNOWN_NAME,
)
from adlogs.validate import validate_log
from contracts.errors import LogError
from contracts.feature_encoders import NOT_FINITE
from contracts.records import LogPaths
from contracts.schema import Feature, FeatureSchema, SequenceField, Table
from contracts.sequence_encoder import FUTURE, UNALIGNED, UNSORTED

START = datetime(2026, 3, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
NUM_REQUESTS, NUM_ADS, ADS_EACH = 6, 4, 4
ROWS_A_FILE = {"requests": 3, "ads": 4, "candidates": 12, "outcomes": 4, "truth": 24}
ROWS_A_GROUP = {"requests": 2, "ads": 3, "candidates": 6, "outcomes": 4, "truth": 24}
EDGE = 11  # candidate at the end of the first file: a winner with both labels

Tables = dict[str, pa.Table]


@pytest.fixture(scope="module")
def schema() -> FeatureSchema:
    fields = {
        "ad_id": SequenceField(kind="categorical", table="ad"),
        "time": SequenceField(kind="age", buckets=8),
    }
    return FeatureSchema(
        tasks=("click", "conversion"),
        objectives={"impression": None, "click": "click"},
        tables={"ad": Table(dim=4, buckets=64), "country": Table(dim=4, max_values=5)},
        features={
            "country": Feature(side="query", kind="categorical", table="country"),
            "activity": Feature(side="query", kind="dense", transform="standardize"),
            "clicks": Feature(side="query", kind="sequence", max_length=2, fields=fields),
            "topics": Feature(side="ad", kind="multi_categorical", table="country", max_length=2),
            "image": Feature(side="ad", kind="embedding", length=2),
            "price": Feature(side="ad", kind="dense", transform="quantile"),
            "seen": Feature(side="pair", kind="dense", transform="log1p", default=0.0),
        },
    )


@pytest.fixture
def tables() -> Tables:
    return {"requests": request_rows(), "ads": ad_rows(), "candidates": candidate_rows()}


def request_rows() -> pa.Table:
    times = [START + timedelta(hours=hour) for hour in range(NUM_REQUESTS)]
    return pa.table(
        {
            "request_id": [f"r-{number}" for number in range(NUM_REQUESTS)],
            "event_time": pa.array(times, TIME),
            "scenario": pa.array(["standard", "shopping", "video-2"] * 2).dictionary_encode(),
            "country": ["DE", None, "FR"] * 2,
            "activity": pa.array([1.0, None, 2.0] * 2),
            "clicks.ad_id": [["ad-1", "ad-2", None], [], None] * 2,
            "clicks.time": pa.array(
                [[times[row] - timedelta(minutes=m) for m in (9, 5, 0)] if row % 3 == 0 else [] for row in range(6)],
                pa.list_(TIME),
            ),
        }
    )


def ad_rows() -> pa.Table:
    """Two rows an ad; the first of each is older than any request."""
    moments = [START - timedelta(days=1), START + timedelta(hours=3)]
    return pa.table(
        {
            "ad_id": [f"ad-{number}" for _ in moments for number in range(NUM_ADS)],
            "valid_from": pa.array([moment for moment in moments for _ in range(NUM_ADS)], pa.timestamp("ns", "UTC")),
            "scenario": ["standard", "shopping"] * NUM_ADS,
            "status": ["active", "paused", None, "removed"] * 2,
            "bid": pa.array([1.0, None, 0.0, 2.5] * 2, pa.float32()),
            "objective": ["click", None, "impression", "click"] * 2,
            "topics": [["DE"], [], None, ["FR", "IT", "ES"]] * 2,
            "image": pa.array([[1.0, 2.0], None, [0.5, 0.5], [0.0, 1.0]] * 2, pa.list_(pa.float32())),
            "price": [3.5, None, 1.0, 9.0] * 2,
        }
    )


def candidate_rows() -> pa.Table:
    """Of each request's four ads two are shown, and of these one has no mature conversion label."""
    num = NUM_REQUESTS
    return pa.table(
        {
            "request_id": [f"r-{request}" for request in range(num) for _ in range(ADS_EACH)],
            "ad_id": [f"ad-{ad}" for _ in range(num) for ad in range(ADS_EACH)],
            "stage": ["eligible", "candidate", "winner", "winner"] * num,
            "bid": pa.array([1.0, None, 2.0, 0.0] * num, pa.float32()),
            "objective": ["click", None, "impression", "click"] * num,
            "seen": pa.array([0, 1, None, 2] * num, pa.int32()),
            "position": pa.array([None, None, 1, 2] * num, pa.int8()),
            "label_click": pa.array([None, None, 0, 1] * num, pa.int8()),
            "label_conversion": pa.array([None, None, None, 1] * num, pa.int8()),
            "sample_weight": pa.array([1.0, None, 2.0, 0.0] * num),
            "explore_propensity": pa.array([None, None, None, 0.1] * num),
            "teacher_click": pa.array([0.1, None, -2.0, 1.0] * num, pa.float32()),
            "teacher_conversion": pa.array([-1.1, None, -3.0, 0.0] * num, pa.float32()),
            "teacher_version": ["series-1", None, "series-1", "series-1"] * num,
        }
    )


def outcome_rows() -> pa.Table:
    return pa.table(
        {
            "request_id": ["r-0", "r-5", "r-1", "r-0"],
            "ad_id": ["ad-2", "ad-2", "ad-0", "ad-3"],
            "shown": [True, True, False, True],
            "position": pa.array([1, 2, None, 2], pa.int64()),
            "label_click": pa.array([True, False, None, True]),
            "label_conversion": pa.array([True, None, None, False]),
        }
    )


def write_log(directory: Path, tables: Tables) -> LogPaths:
    for dataset, table in tables.items():
        size = ROWS_A_FILE[dataset]
        (directory / dataset).mkdir(parents=True)
        for part in range(len(table) // size):
            rows = table.slice(part * size, size)
            pq.write_table(rows, part_path(directory, dataset, part), row_group_size=ROWS_A_GROUP[dataset])
    return LogPaths.under(directory)


def part_path(directory: Path, dataset: str, part: int) -> Path:
    return directory / dataset / f"part-{part}.parquet"


def faults_of(directory: Path, tables: Tables, schema: FeatureSchema) -> tuple[LogFault, ...]:
    return validate_log(write_log(directory, tables), schema).faults


def with_value(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    type_ = table[column].type
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, type_))


def with_column(table: pa.Table, column: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(column), column, values)


def place(directory: Path, dataset: str, row: int) -> dict[str, Any]:
    """Where a row of a dataset is found: what a fault must say."""
    part, in_file = divmod(row, ROWS_A_FILE[dataset])
    group, in_group = divmod(in_file, ROWS_A_GROUP[dataset])
    file = str(part_path(directory, dataset, part))
    return {"dataset": dataset, "file": file, "row_group": group, "row": in_group}


def seen_at(fault: LogFault) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in ("dataset", "file", "row_group", "row")}


VALUE_FAULTS: list[tuple[str, int, str, object, str]] = [
    ("requests", 4, "request_id", None, NULL.format("text")),
    ("requests", 4, "event_time", None, NULL.format("timestamp with a time zone")),
    ("requests", 2, "scenario", "", NO_SCENARIO),
    ("requests", 5, "scenario", " ", NO_SCENARIO),
    ("requests", 3, "scenario", "日本", NO_SCENARIO),
    ("requests", 4, "scenario", "auto", NO_SCENARIO),
    ("ads", 2, "scenario", "home page", NO_SCENARIO),
    ("requests", 1, "scenario", None, NULL.format("text")),
    ("requests", 3, "activity", float("nan"), NOT_FINITE),
    ("requests", 3, "activity", float("-inf"), NOT_FINITE),
    ("requests", 3, "activity", 1e39, NOT_FINITE),
    ("requests", 3, "clicks.ad_id", ["ad-1"], UNALIGNED),
    ("requests", 0, "clicks.time", [START - timedelta(minutes=m) for m in (5, 9, 0)], UNSORTED),
    ("requests", 0, "clicks.time", [START - timedelta(minutes=m) for m in (5, 0, -1)], FUTURE),
    ("ads", 3, "scenario", None, NULL.format("text")),
    ("ads", 7, "status", "live", UNKNOWN_NAME.format("one of 'active', 'paused', 'removed' or null")),
    ("ads", 7, "objective", "install", UNKNOWN_NAME.format("one of 'click', 'impression' or null")),
    ("ads", 6, "bid", -0.5, BAD_BID),
    ("ads", 5, "price", float("nan"), NOT_FINITE),
    ("ads", 5, "image", [1.0, float("inf")], NOT_FINITE),
    ("ads", 5, "image", [1.0], "has a list of another length, expected 2 numbers or null"),
    ("candidates", EDGE, "stage", "clicked", UNKNOWN_NAME.format("one of 'eligible', 'candidate', 'winner'")),
    ("candidates", EDGE, "objective", "install", UNKNOWN_NAME.format("one of 'click', 'impression' or null")),
    ("candidates", EDGE, "ad_id", None, NULL.format("text")),
    ("candidates", EDGE, "ad_id", "ad-99", UNKNOWN_AD),
    ("candidates", EDGE, "request_id", "r-99", UNKNOWN_REQUEST),
    ("candidates", EDGE, "ad_id", "ad-1", REPEATED_PAIR),
    ("candidates", EDGE, "bid", -1.0, BAD_BID),
    ("candidates", EDGE, "bid", float("inf"), BAD_BID),
    ("candidates", EDGE, "sample_weight", -1.0, BAD_WEIGHT),
    ("candidates", EDGE, "sample_weight", float("nan"), BAD_WEIGHT),
    ("candidates", EDGE, "explore_propensity", 0.0, BAD_PROPENSITY),
    ("candidates", EDGE, "explore_propensity", 1.5, BAD_PROPENSITY),
    ("candidates", 12, "position", 3, NOT_SHOWN),
    ("candidates", 13, "label_click", 0, NOT_SHOWN),
    ("candidates", 6, "label_click", 2, NOT_BINARY),
    ("candidates", 6, "label_conversion", 1, BROKEN_CHAIN.format("label_click")),
    ("candidates", EDGE, "teacher_click", float("nan"), NOT_FINITE_LOGIT),
    ("candidates", EDGE, "teacher_version", "series-2", MIXED_TEACHERS.format("series-1")),
    ("candidates", EDGE, "teacher_version", None, NO_TEACHER_VERSION),
]


@pytest.mark.parametrize(("dataset", "row", "column", "value", "rule"), VALUE_FAULTS)
def test_a_broken_value_is_the_one_fault(
    tmp_path: Path,
    schema: FeatureSchema,
    tables: Tables,
    dataset: str,
    row: int,
    column: str,
    value: object,
    rule: str,
) -> None:
    tables[dataset] = with_value(tables[dataset], row, column, value)
    faults = [fault for fault in faults_of(tmp_path, tables, schema) if (fault.column, fault.rule) == (column, rule)]
    assert [(seen_at(fault), fault.count) for fault in faults] == [(place(tmp_path, dataset, row), 1)]


@pytest.mark.parametrize(
    ("dataset", "row", "column", "value"),
    [
        ("requests", 0, "activity", None),
        ("ads", 0, "status", None),
        ("candidates", EDGE, "seen", None),
        ("candidates", EDGE, "explore_propensity", 1.0),
        ("candidates", 6, "label_conversion", 0),
        ("candidates", EDGE, "position", None),
    ],
)
def test_a_value_at_the_edge_of_a_rule_is_no_fault(
    tmp_path: Path, schema: FeatureSchema, tables: Tables, dataset: str, row: int, column: str, value: object
) -> None:
    tables[dataset] = with_value(tables[dataset], row, column, value)
    assert faults_of(tmp_path, tables, schema) == ()


def test_nothing_else_is_reported_beside_the_broken_value(
    tmp_path: Path, schema: FeatureSchema, tables: Tables
) -> None:
    """Some values cannot be broken alone: without its id a request is unknown to its candidates."""
    consequences = {
        ("requests", "request_id"): {"candidates"},
        ("candidates", "stage"): {"candidates"},
    }
    for number, (dataset, row, column, value, _) in enumerate(VALUE_FAULTS):
        broken = {**tables, dataset: with_value(tables[dataset], row, column, value)}
        faults = faults_of(tmp_path / str(number), broken, schema)
        others = {fault.dataset for fault in faults if fault.column != column}
        assert others <= consequences.get((dataset, column), set()), faults


def test_a_sound_log_has_no_fault_with_or_without_fitted_state(
    tmp_path: Path, schema: FeatureSchema, tables: Tables
) -> None:
    tables["outcomes"] = outcome_rows()
    tables["truth"] = pa.table(
        {**{name: tables["candidates"][name] for name in ("request_id", "ad_id")}, "true_click": np.linspace(0, 1, 24)}
    )
    log = write_log(tmp_path, tables)
    report = validate_log(log, schema)
    assert report.faults == ()
    assert report.counts == {
        "requests": DatasetCount(files=2, row_groups=4, rows=6),
        "ads": DatasetCount(files=2, row_groups=4, rows=8),
        "outcomes": DatasetCount(files=1, row_groups=1, rows=4),
        "candidates": DatasetCount(files=2, row_groups=4, rows=24),
        "truth": DatasetCount(files=1, row_groups=1, rows=24),
    }
    assert validate_log(log, fit_log(schema, log, until=None)) == report
    report.require_valid()


def dropped(column: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns([column])


def as_type(column: str, type_: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda table: with_column(table, column, table[column].cast(type_))


def of_nulls(column: str, type_: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda table: with_column(table, column, pa.nulls(len(table), type_))


COLUMN_FAULTS: list[tuple[str, Callable[[pa.Table], pa.Table], str, str]] = [
    ("requests", dropped("event_time"), "event_time", MISSING_COLUMN.format("timestamp with a time zone")),
    ("requests", dropped("country"), "country", MISSING_COLUMN.format("by feature 'country' of the schema")),
    ("requests", dropped("clicks.time"), "clicks.time", MISSING_COLUMN.format("by feature 'clicks' of the schema")),
    ("requests", as_type("event_time", pa.timestamp("us")), "event_time", NAIVE_TIME),
    ("requests", as_type("clicks.time", pa.list_(pa.timestamp("ms"))), "clicks.time", NAIVE_TIME),
    (
        "requests",
        as_type("clicks.time", pa.list_(pa.int64())),
        "clicks.time",
        WRONG_TYPE.format("a list of timestamps with a time zone"),
    ),
    ("requests", as_type("activity", pa.string()), "activity", WRONG_TYPE.format("numbers")),
    ("requests", of_nulls("country", pa.float64()), "country", WRONG_TYPE.format("text, integers or booleans")),
    ("ads", of_nulls("topics", pa.string()), "topics", WRONG_TYPE.format("a list of text, integers or booleans")),
    ("ads", of_nulls("image", pa.list_(pa.string())), "image", WRONG_TYPE.format("a list of numbers")),
    ("ads", as_type("valid_from", pa.timestamp("s")), "valid_from", NAIVE_TIME),
    ("ads", as_type("bid", pa.string()), "bid", WRONG_TYPE.format("number")),
    ("candidates", dropped("stage"), "stage", MISSING_COLUMN.format("text")),
    ("candidates", dropped("seen"), "seen", MISSING_COLUMN.format("by feature 'seen' of the schema")),
    ("candidates", dropped("label_click"), "label_click", MISSING_COLUMN.format("number or boolean")),
    ("candidates", as_type("label_click", pa.string()), "label_click", WRONG_TYPE.format("number or boolean")),
    ("candidates", as_type("teacher_click", pa.string()), "teacher_click", WRONG_TYPE.format("number")),
    ("candidates", as_type("position", pa.float32()), "position", WRONG_TYPE.format("integer")),
]


@pytest.mark.parametrize(("dataset", "change", "column", "rule"), COLUMN_FAULTS)
def test_a_column_that_is_absent_or_of_another_type_is_a_fault_of_each_file_and_of_nothing_else(
    tmp_path: Path,
    schema: FeatureSchema,
    tables: Tables,
    dataset: str,
    change: Callable[[pa.Table], pa.Table],
    column: str,
    rule: str,
) -> None:
    tables[dataset] = change(tables[dataset])
    faults = faults_of(tmp_path, tables, schema)
    found = [(fault.dataset, fault.file, fault.row_group, fault.row, fault.column, fault.rule) for fault in faults]
    files = [str(part_path(tmp_path, dataset, part)) for part in range(2)]
    assert found == [(dataset, file, None, None, column, rule) for file in files]


def test_the_type_that_was_found_is_the_example(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    tables["requests"] = as_type("activity", pa.string())(tables["requests"])
    assert {fault.example for fault in faults_of(tmp_path, tables, schema)} == {'"string"'}


def test_a_column_of_two_types_is_a_fault_of_the_second_file(
    tmp_path: Path, schema: FeatureSchema, tables: Tables
) -> None:
    log = write_log(tmp_path, tables)
    first, second = (part_path(tmp_path, "requests", part) for part in range(2))
    pq.write_table(with_column(pq.read_table(second), "country", pa.array([49, 33, None])), second)
    (fault,) = validate_log(log, schema).faults
    assert (fault.file, fault.column, fault.rule) == (str(second), "country", DIFFERING_TYPE.format(first))


def test_a_feedback_log_may_have_been_scored_by_several_heavy_rankers(
    tmp_path: Path, schema: FeatureSchema, tables: Tables
) -> None:
    tables["candidates"] = with_value(tables["candidates"], EDGE, "teacher_version", "series-2")
    mixed = validate_log(write_log(tmp_path / "scored", tables), schema)
    assert [fault.rule for fault in mixed.faults] == [MIXED_TEACHERS.format("series-1")]
    light = pa.array([0.5] * len(tables["candidates"]), pa.float32())
    tables["candidates"] = tables["candidates"].append_column("light_click", light)
    assert validate_log(write_log(tmp_path / "feedback", tables), schema).faults == ()


def test_labels_may_stand_in_outcomes_alone(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    tables["candidates"] = tables["candidates"].drop_columns(["label_click", "label_conversion"])
    tables["outcomes"] = outcome_rows()
    assert faults_of(tmp_path, tables, schema) == ()


def test_a_request_that_comes_twice_is_found_across_files(
    tmp_path: Path, schema: FeatureSchema, tables: Tables
) -> None:
    tables["requests"] = with_value(tables["requests"], 5, "request_id", "r-0")
    fault = faults_of(tmp_path, tables, schema)[0]
    assert seen_at(fault) == place(tmp_path, "requests", 5)
    assert (fault.column, fault.rule, fault.example) == ("request_id", REPEATED_REQUEST, '"r-0"')


def test_a_tie_of_ads_is_found_across_files(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    tables["ads"] = with_value(tables["ads"], 6, "valid_from", START - timedelta(days=1))
    (fault,) = faults_of(tmp_path, tables, schema)
    assert seen_at(fault) == place(tmp_path, "ads", 6)
    assert (fault.column, fault.rule, fault.count) == ("valid_from", TIED, 1)
    assert fault.example == '{"ad_id": "ad-2", "valid_from": "2026-02-28T00:00:00.000000Z"}'


def test_an_ad_without_a_row_as_of_the_request(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    """ad-1 begins at 02:30, so the first three requests could not see it, unless they saw a later state."""
    tables["ads"] = with_value(tables["ads"], 1, "valid_from", START + timedelta(hours=2.5))
    faults = faults_of(tmp_path / "a", tables, schema)
    assert [(fault.column, fault.rule, fault.count) for fault in faults] == [
        ("ad_id", NO_AD_YET, 2),
        ("ad_id", NO_AD_YET, 1),
    ]
    assert [seen_at(fault) for fault in faults] == [place(tmp_path / "a", "candidates", row) for row in (1, 9)]
    assert faults[0].example == '{"request_id": "r-0", "ad_id": "ad-1"}'

    as_of = pa.array([START + timedelta(hours=3)] * 2 + [None] * 4, TIME)
    tables["requests"] = tables["requests"].append_column("ads_as_of", as_of)
    faults = faults_of(tmp_path / "b", tables, schema)
    assert [seen_at(fault) for fault in faults] == [place(tmp_path / "b", "candidates", 9)]


def test_rows_of_a_request_must_stand_together(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    order = [*range(20), 23, 20, 21, 22]  # still together
    tables["candidates"] = tables["candidates"].take(order)
    assert faults_of(tmp_path / "a", tables, schema) == ()
    order = [*range(1, 20), 0, 20, 21, 22, 23]  # the first row of the first request, after the fifth
    tables["candidates"] = candidate_rows().take(order)
    (fault,) = faults_of(tmp_path / "b", tables, schema)
    assert seen_at(fault) == place(tmp_path / "b", "candidates", 19)
    assert (fault.column, fault.rule, fault.count, fault.example) == ("request_id", NOT_CONTIGUOUS, 1, '"r-0"')


def test_sequences_are_checked_beyond_the_events_that_a_model_keeps(
    tmp_path: Path, schema: FeatureSchema, tables: Tables
) -> None:
    times = [START + timedelta(hours=1), START - timedelta(minutes=5), START]
    tables["requests"] = with_value(tables["requests"], 0, "clicks.time", times)
    faults = faults_of(tmp_path, tables, schema)
    assert {(fault.column, fault.rule) for fault in faults} == {("clicks.time", UNSORTED), ("clicks.time", FUTURE)}


def test_faults_of_outcomes(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    cases: list[tuple[int, str, object, str, str]] = [
        (2, "position", 4, "position", NOT_SHOWN),
        (2, "label_click", False, "label_click", NOT_SHOWN),
        (1, "label_conversion", True, "label_conversion", BROKEN_CHAIN.format("label_click")),
        (3, "ad_id", "ad-2", "ad_id", REPEATED_PAIR),
        (1, "request_id", "r-7", "request_id", UNKNOWN_REQUEST),
        (3, "ad_id", "ad-7", "ad_id", UNKNOWN_AD),
        (0, "shown", None, "shown", NULL.format("boolean")),
    ]
    for number, (row, changed, value, column, rule) in enumerate(cases):
        tables["outcomes"] = with_value(outcome_rows(), row, changed, value)
        faults = [fault for fault in faults_of(tmp_path / str(number), tables, schema) if fault.rule != NOT_SHOWN] or [
            *validate_log(LogPaths.under(tmp_path / str(number)), schema).faults
        ]
        assert [(seen_at(fault), fault.column, fault.rule) for fault in faults] == [
            (place(tmp_path / str(number), "outcomes", row), column, rule)
        ]


def test_faults_of_truth(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    keys = {name: tables["candidates"][name] for name in ("request_id", "ad_id")}
    tables["truth"] = pa.table({**keys, "true_click": np.linspace(0, 1.01, 24)})
    (fault,) = faults_of(tmp_path, tables, schema)
    assert seen_at(fault) == place(tmp_path, "truth", 23)
    assert (fault.column, fault.rule) == ("true_click", NOT_PROBABILITY)


def test_faults_of_a_long_row_group_become_one_with_their_count(
    tmp_path: Path, schema: FeatureSchema, tables: Tables
) -> None:
    num = 2 * ROWS_AT_ONCE + 100
    bad = np.arange(num) % 1000 == 999
    log = write_log(tmp_path, tables)
    rows = {name: pa.concat_arrays([column.slice(0, 1).combine_chunks()] * num) for name, column in columns_of(tables)}
    rows["request_id"] = pa.array([f"q-{row}" for row in range(num)])
    rows["activity"] = pa.array(np.where(bad, np.nan, 1.0))
    pq.write_table(pa.table(rows), part_path(tmp_path, "requests", 2), row_group_size=num)
    (fault,) = validate_log(log, schema).faults
    assert (fault.row_group, fault.row, fault.count) == (0, 999, int(bad.sum()))
    assert (fault.column, fault.rule, fault.example) == ("activity", NOT_FINITE, "NaN")


def columns_of(tables: Tables) -> list[tuple[str, pa.ChunkedArray]]:
    table = tables["requests"]
    return [(name, table[name]) for name in table.schema.names]


def test_a_file_that_is_not_parquet_and_one_that_is_cut(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    log = write_log(tmp_path, tables)
    broken, cut = part_path(tmp_path, "ads", 0), part_path(tmp_path, "candidates", 1)
    broken.write_bytes(b"not Parquet")
    content = bytearray(cut.read_bytes())
    content[4:200] = bytes(196)  # the first pages; the footer stays
    cut.write_bytes(content)
    faults = validate_log(log, schema).faults
    assert [(fault.file, fault.row_group, fault.column, fault.rule) for fault in faults] == [
        (str(broken), None, None, NOT_READABLE),
        (str(cut), 0, None, NOT_READABLE),
    ]


def test_text_that_is_not_utf8(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    texts = pa.array([b"DE", b"\xff\xfe", b"FR"] * 2, pa.binary()).view(pa.string())
    tables["requests"] = with_column(tables["requests"], "country", texts)
    faults = faults_of(tmp_path, tables, schema)
    assert [(fault.row_group, fault.column, fault.rule) for fault in faults] == [
        (0, "country", "holds bytes that are no string"),
        (0, "country", "holds bytes that are no string"),
    ]


def test_a_dataset_that_is_not_there(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    log = write_log(tmp_path, tables)
    shutil.rmtree(tmp_path / "ads")
    with pytest.raises(LogError, match=r"ads: no Parquet file here"):
        validate_log(log, schema)


def test_the_report_as_table_as_json_and_as_error(tmp_path: Path, schema: FeatureSchema, tables: Tables) -> None:
    tables["candidates"] = with_value(tables["candidates"], EDGE, "ad_id", "[red]ad-99")
    report = validate_log(write_log(tmp_path, tables), schema)
    printed = io.StringIO()
    Console(width=150, file=printed).print(report_table(report))
    assert "part-0.parquet" in printed.getvalue()
    assert "[red]ad-99" in printed.getvalue()
    assert msgspec.to_builtins(report)["faults"][0]["column"] == "ad_id"
    with pytest.raises(LogError, match=r"1 fault .*part-0.parquet, row group 1: column 'ad_id' is not in ads/"):
        report.require_valid()
