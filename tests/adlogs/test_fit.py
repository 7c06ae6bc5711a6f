from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adlogs.fit import bundled_schemas, fit_log, named_schema
from contracts.errors import ConfigError, InputError, LogError
from contracts.records import LogPaths
from contracts.schema import Feature, FeatureSchema, SequenceField, Table, save_schema

START = datetime(2026, 3, 1, tzinfo=UTC)
NUM_REQUESTS, NUM_ADS = 40, 12
TIME = pa.timestamp("ms", "UTC")


@pytest.fixture
def schema() -> FeatureSchema:
    return FeatureSchema(
        tasks=("click",),
        objectives={"click": "click"},
        tables={
            "country": Table(dim=4, max_values=2),
            "tag": Table(dim=4, max_values=3),
            "ad": Table(dim=4, buckets=9),
        },
        features={
            "ad_id": Feature(side="ad", kind="categorical", table="ad"),
            "country": Feature(side="query", kind="categorical", table="country"),
            "ctr": Feature(side="query", kind="dense", transform="standardize"),
            "tags": Feature(side="ad", kind="multi_categorical", table="tag", max_length=2),
            "price": Feature(side="ad", kind="dense", transform="log1p_standardize"),
            "seen": Feature(side="pair", kind="dense", transform="none"),
            "watch": Feature(
                side="query",
                kind="sequence",
                max_length=3,
                fields={"tag": SequenceField(kind="categorical", table="tag"), "time": SequenceField(kind="age")},
            ),
        },
    )


@pytest.fixture
def tables() -> dict[str, pa.Table]:
    """Requests one an hour, ads one every four hours, each request with two candidates."""
    random = np.random.default_rng(5)
    requests = pa.table(
        {
            "request_id": [f"r-{number}" for number in range(NUM_REQUESTS)],
            "event_time": pa.array([START + timedelta(hours=hour) for hour in range(NUM_REQUESTS)], TIME),
            "scenario": ["standard"] * NUM_REQUESTS,
            "country": pa.array((["DE"] * 3 + ["FR"] * 2 + [None]) * 2 + ["JP"] * 28),
            "ctr": random.normal(size=NUM_REQUESTS),
            "watch.tag": [["b"]] * NUM_REQUESTS,
        }
    )
    ads = pa.table(
        {
            "ad_id": [f"ad-{number}" for number in range(NUM_ADS)],
            "valid_from": pa.array([START + timedelta(hours=4 * number) for number in range(NUM_ADS)], TIME),
            "scenario": ["standard"] * NUM_ADS,
            "tags": [["a", "c"], ["a"], None] * 2 + [["z"] * 9] * 6,
            "price": random.lognormal(size=NUM_ADS),
        }
    )
    candidates = pa.table(
        {
            "request_id": [f"r-{number // 2}" for number in range(2 * NUM_REQUESTS)],
            "ad_id": [f"ad-{number % NUM_ADS}" for number in range(2 * NUM_REQUESTS)],
            "seen": pa.array(random.integers(0, 9, 2 * NUM_REQUESTS)),
        }
    )
    return {"requests": requests, "ads": ads, "candidates": candidates}


def write_log(directory: Path, tables: dict[str, pa.Table]) -> LogPaths:
    for name, table in tables.items():
        (directory / name).mkdir(parents=True)
        half = len(table) // 2
        pq.write_table(table.slice(0, half), directory / name / "part-0.parquet")
        pq.write_table(table.slice(half), directory / name / "part-1.parquet")
    return LogPaths.under(directory)


@pytest.mark.parametrize("hours", [12, None])
def test_state_comes_from_the_rows_before_a_moment(
    tmp_path: Path, schema: FeatureSchema, tables: dict[str, pa.Table], hours: int | None
) -> None:
    until = None if hours is None else START + timedelta(hours=hours)
    num_requests, num_ads = (NUM_REQUESTS, NUM_ADS) if hours is None else (12, 3)
    fitted = fit_log(schema, write_log(tmp_path, tables), until=until)
    fitted.require_fitted()
    values = {
        "ctr": tables["requests"]["ctr"].to_numpy()[:num_requests],
        "price": np.log1p(tables["ads"]["price"].to_numpy()[:num_ads]),
        "seen": tables["candidates"]["seen"].to_numpy()[: 2 * num_requests],
    }
    for name, expected in values.items():
        state = fitted.features[name].fitted
        assert state is not None
        assert state.mean == pytest.approx(expected.mean(), rel=1e-12)
    assert fitted.tables["country"].vocabulary == (("JP", "DE") if hours is None else ("DE", "FR"))
    # "b" of 40 or 12 histories; "z" only of later ads; "a" and "c" of the first ads
    assert fitted.tables["tag"].vocabulary == (("z", "b", "a") if hours is None else ("b", "a", "c"))


def test_a_fitted_schema_stays_as_it_is_and_reads_nothing(
    tmp_path: Path, schema: FeatureSchema, tables: dict[str, pa.Table]
) -> None:
    fitted = fit_log(schema, write_log(tmp_path, tables), until=None)
    nowhere = LogPaths.under(tmp_path / "nowhere")
    assert fit_log(fitted, nowhere, until=None) == fitted


def test_candidates_are_read_for_pair_features_alone(
    tmp_path: Path, schema: FeatureSchema, tables: dict[str, pa.Table]
) -> None:
    towers = msgspec.structs.replace(schema, features={k: f for k, f in schema.features.items() if f.side != "pair"})
    del tables["candidates"]
    assert fit_log(towers, write_log(tmp_path, tables), until=None).is_fitted


def test_what_cannot_be_fitted_from_is_refused(
    tmp_path: Path, schema: FeatureSchema, tables: dict[str, pa.Table]
) -> None:
    log = write_log(tmp_path / "log", tables)
    with pytest.raises(ConfigError, match=r"no value in the log"):
        fit_log(schema, log, until=START)
    with pytest.raises(InputError, match="until: expected a time with a zone"):
        fit_log(schema, log, until=datetime(2026, 3, 2))
    absent = write_log(tmp_path / "absent", {**tables, "ads": tables["ads"].drop_columns(["price"])})
    with pytest.raises(LogError, match=r"absent/ads: column 'price' is missing, expected for side 'ad'"):
        fit_log(schema, absent, until=None)
    nan = tables["requests"].set_column(4, "ctr", pa.array([np.nan] * NUM_REQUESTS))
    with pytest.raises(LogError, match=r"nan: column 'ctr' holds NaN"):
        fit_log(schema, write_log(tmp_path / "nan", {**tables, "requests": nan}), until=None)


def test_schemas_by_path_and_by_name(tmp_path: Path, schema: FeatureSchema) -> None:
    path = tmp_path / "own.yaml"
    save_schema(schema, path)
    assert named_schema(path) == schema
    for name in bundled_schemas():
        assert named_schema(name).tasks
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
        named_schema(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=r"schema 'simulated_heavi': expected a file or one of .*did you mean"):
        named_schema("simulated_heavi")
