"""`adsieve schema infer`: what is proposed follows from the rows, loads, and leaves out what knows the outcome."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from adlogs.evidence import Constancy, constancy, suspicion
from adlogs.fit import fit_log, named_schema
from adlogs.infer import infer_schema
from adlogs.simulate import SimulationSummary
from adlogs.validate import validate_log
from contracts.errors import InputError, LogError
from contracts.metrics import auc
from contracts.records import LogPaths
from contracts.schema import FeatureSchema, load_schema

ROWS = 1_200


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """600 requests of two ads each, with a column for each thing that may go wrong."""
    source = np.random.default_rng(5)
    requests, ads = ROWS // 2, 40
    moments = [datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=number) for number in range(requests)]
    lengths = source.integers(0, 6, requests)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    events = pa.array([f"ad-{number}" for number in source.integers(0, ads, lengths.sum())])
    times = pa.array([moments[0] - timedelta(days=1)] * int(lengths.sum()), pa.timestamp("us", "UTC"))
    longer = np.concatenate([[0], np.cumsum(lengths + 1)]).astype(np.int32)
    more = pa.array(np.zeros(longer[-1], np.int64))
    query = {
        "request_id": [f"r{number:05d}" for number in range(requests)],
        "event_time": pa.array(moments, pa.timestamp("us", "UTC")),
        "scenario": ["standard"] * requests,
        "country": source.choice(["DE", "FR", "PL"], requests),
        "spend": source.lognormal(3, 2, requests),
        "odd name": source.normal(size=requests),
        "note": [f"text {number}" for number in range(requests)],
        "seen.ad_id": pa.ListArray.from_arrays(offsets, events),
        "seen.time": pa.ListArray.from_arrays(offsets, times),
        "seen.other": pa.ListArray.from_arrays(pa.array(longer), more),
        "vector": pa.array([[0.5, 1.5, float(number)] for number in range(requests)], pa.list_(pa.float32())),
        "broken": np.where(np.arange(requests) == 7, np.inf, 1.0) * np.arange(requests),
    }
    catalogue = {
        "ad_id": [f"ad-{number}" for number in range(ads)],
        "valid_from": pa.array([moments[0] - timedelta(days=2)] * ads, pa.timestamp("us", "UTC")),
        "scenario": ["standard"] * ads,
        "brand": [f"brand {number % 7}" for number in range(ads)],
        "tags": [[f"t{number % 5}", f"t{number % 3}"] for number in range(ads)],
    }
    clicked = (source.random(ROWS) < 0.2).astype(np.int8)
    shown = np.arange(ROWS) % 2 == 0
    bought = clicked * (source.random(ROWS) < 0.5)
    label = pa.array(np.where(shown, clicked, 0), pa.int8(), mask=~shown)
    pairs = {
        "request_id": np.repeat(query["request_id"], 2),
        "ad_id": [f"ad-{(number // 2 + number % 2 * 11) % ads}" for number in range(ROWS)],
        "stage": np.where(shown, "winner", "eligible"),
        "label_click": label,
        "label_buy": pa.array(np.where(shown, bought, 0), pa.int8(), mask=~shown),
        "label_share": pa.array(1 - clicked, pa.int8(), mask=~shown),
        "distance": source.normal(size=ROWS),
        "dwell": pa.array(np.where(clicked == 1, 5.0, 0.0), mask=~shown),
        "hint": clicked + source.normal(0, 0.45, ROWS),
        "viewable": pa.array(source.random(ROWS), mask=~shown),
    }
    for name, columns in (("requests", query), ("ads", catalogue), ("candidates", pairs)):
        (tmp_path / "log" / name).mkdir(parents=True)
        pq.write_table(pa.table(columns), tmp_path / "log" / name / "part.parquet")
    return tmp_path / "log"


def inferred(log: Path, out: Path, **how: Any) -> tuple[FeatureSchema, dict[str, str]]:
    """The schema, and why each feature is left out."""
    proposal = infer_schema(log, out, **how)
    return load_schema(out), {guess.name: guess.comment for guess in proposal.features if guess.left_out}


def test_kinds_tables_tasks_and_reasons(log: Path, tmp_path: Path) -> None:
    schema, left_out = inferred(log, tmp_path / "schema.yaml")
    assert schema.tasks == ("click", "buy")
    kinds = {name: (feature.side, feature.kind) for name, feature in schema.features.items()}
    assert kinds == {
        "country": ("query", "categorical"),
        "spend": ("query", "dense"),
        "vector": ("query", "embedding"),
        "seen": ("query", "sequence"),
        "ad_id": ("ad", "categorical"),
        "brand": ("ad", "categorical"),
        "tags": ("ad", "multi_categorical"),
        "distance": ("pair", "dense"),
        "hint": ("pair", "dense"),
    }
    assert schema.features["spend"].transform == "log1p_standardize"
    assert schema.features["distance"].transform == "standardize"
    assert schema.features["vector"].length == 3
    fields = schema.features["seen"].fields
    assert fields is not None
    assert {name: field.table for name, field in fields.items()} == {"ad_id": "ad_id", "time": None}
    reasons = {
        "scenario": "one value in every row",
        "note": "free text",
        "odd name": "is no name of a feature",
        "broken": "1 NaN or infinite values",
        "dwell": "leak suspected: set only for ads that were shown",
        "viewable": "leak suspected: set only for ads that were shown",
    }
    assert set(left_out) == set(reasons)
    for name, reason in reasons.items():
        assert reason in left_out[name]
    text = (tmp_path / "schema.yaml").read_text()
    assert "check: left out share: label_share comes before no longer chain than click > buy" in text
    assert "leak? tells click alone with an AUC of" in text
    assert "other has other lengths than ad_id, so it is no field" in text


def test_what_is_inferred_validates_and_fits(log: Path, tmp_path: Path) -> None:
    schema, _ = inferred(log, tmp_path / "schema.yaml")
    paths = LogPaths.under(log)
    assert not validate_log(paths, schema).faults
    assert fit_log(schema, paths, until=None).is_fitted


def test_of_a_simulated_log_the_schema_written_by_hand_is_found(
    tiny: tuple[Path, SimulationSummary], tmp_path: Path
) -> None:
    """Sides and kinds of every feature; what is left out there, and sizes, are choices."""
    schema, _ = inferred(tiny[0], tmp_path / "schema.yaml")
    by_hand = named_schema("simulated_heavy")
    assert schema.tasks == by_hand.tasks
    assert schema.objectives == by_hand.objectives
    for name, feature in by_hand.features.items():
        if name in schema.features:
            assert (schema.features[name].side, schema.features[name].kind) == (feature.side, feature.kind), name
    assert set(by_hand.features) <= set(schema.features) | {"landing_score"}
    towers, left_out = inferred(tiny[0], tmp_path / "towers.yaml", towers=True)
    assert not towers.side_features("pair")
    assert "towers cannot" in left_out["user_advertiser_clicks"]
    assert set(towers.features) | {"user_advertiser_clicks"} == set(schema.features)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_flat_table_is_divided_by_what_is_constant(log: Path, tmp_path: Path, suffix: str) -> None:
    paths = LogPaths.under(log)
    tables = [pq.read_table(path) for path in (paths.candidates, paths.requests, paths.ads)]
    tables[1] = tables[1].select(["request_id", "country", "spend"])
    tables[2] = tables[2].select(["ad_id", "brand"])
    flat = tables[0].select(["request_id", "ad_id", "label_click", "distance"])
    flat = flat.join(tables[1], "request_id").join(tables[2], "ad_id")
    path = tmp_path / f"flat{suffix}"
    (csv.write_csv if suffix == ".csv" else pq.write_table)(flat, path)
    schema, _ = inferred(path, tmp_path / "schema.yaml")
    assert {name: feature.side for name, feature in schema.features.items()} == {
        "country": "query",
        "spend": "query",
        "brand": "ad",
        "ad_id": "ad",
        "distance": "pair",
    }
    assert schema.tasks == ("click",)


def test_outcomes_may_stand_apart(log: Path, tmp_path: Path) -> None:
    inferred(log, tmp_path / "whole.yaml")
    path = log / "candidates" / "part.parquet"
    table = pq.read_table(path)
    labels = [name for name in table.schema.names if name.startswith("label_")]
    outcomes = table.select(["request_id", "ad_id", *labels]).take(pa.array(np.arange(ROWS)[::-1]))
    (log / "outcomes").mkdir()
    pq.write_table(
        outcomes.append_column("shown", outcomes["label_click"].is_valid()), log / "outcomes" / "part.parquet"
    )
    pq.write_table(table.drop_columns(labels), path)
    inferred(log, tmp_path / "apart.yaml")
    assert load_schema(tmp_path / "apart.yaml") == load_schema(tmp_path / "whole.yaml")


def test_a_column_of_the_request_or_the_ad_that_knows_the_outcome(log: Path, tmp_path: Path) -> None:
    """Each is judged on the rows that its request or ad had, by the join that training makes."""
    pairs = pq.read_table(log / "candidates" / "part.parquet").to_pylist()
    clicked = {row["request_id"] for row in pairs if row["label_click"] == 1}
    path = log / "requests" / "part.parquet"
    requests = pq.read_table(path)
    source = np.random.default_rng(8)
    known = [float(row in clicked) for row in requests["request_id"].to_pylist()]
    requests = requests.append_column("session_value", pa.array(np.array(known) + source.normal(0, 0.1, len(known))))
    pq.write_table(requests, path)
    _, left_out = inferred(log, tmp_path / "schema.yaml")
    assert "leak suspected: tells click alone with an AUC of" in left_out["session_value"]


def test_faults(log: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no such file or directory"):
        infer_schema(tmp_path / "absent", tmp_path / "schema.yaml")
    (tmp_path / "there.yaml").touch()
    with pytest.raises(InputError, match="is there already"):
        infer_schema(log, tmp_path / "there.yaml")
    path = log / "candidates" / "part.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns([name for name in table.schema.names if name.startswith("label_")]), path)
    with pytest.raises(LogError, match="no column is an outcome, expected label_TASK such as label_click"):
        infer_schema(log, tmp_path / "schema.yaml")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LogError, match=r"part\.parquet"):
        infer_schema(log, tmp_path / "schema.yaml")
    assert not (tmp_path / "schema.yaml").exists()


def test_constancy_equals_a_count_by_loops() -> None:
    source = np.random.default_rng(1)
    groups, values = source.integers(-1, 40, 400), source.integers(0, 2, 400)
    values[groups < 20] = 1
    found: dict[int, list[int]] = {}
    for group, value in zip(groups.tolist(), values.tolist(), strict=True):
        if group >= 0:
            found.setdefault(group, []).append(value)
    several = [own for own in found.values() if len(own) > 1]
    share = sum(len(set(own)) == 1 for own in several) / len(several)
    assert constancy(values, groups) == Constancy(pytest.approx(share), len(several))


def test_suspicion_follows_the_auc() -> None:
    source = np.random.default_rng(2)
    outcome = (source.random(2_000) < 0.3).astype(float)
    outcome[:100] = np.nan
    for noise, sure in ((0.2, True), (0.55, False), (2.0, None)):
        values = 5 - outcome + source.normal(0, noise, 2_000)
        values[:100] = 0.0
        found = suspicion(pa.array(values), outcome, "click")
        figure = 1 - auc(outcome[100:], values[100:])
        assert (None if found is None else found.sure) == sure
        if found is not None:
            assert f"AUC of {figure:.3f}" in found.reason
    assert suspicion(pa.array([None] * 2_000, pa.string()), outcome, "click") is None
