"""Reading a log into arrays, against a loop over its rows."""

import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.encoding import Encoder
from contracts.errors import InputError, LogError
from contracts.records import STAGES, LogPaths
from contracts.schema import FeatureSchema
from modeling.examples import Examples, encode_log
from modeling.split import split_by_time


def expected_rows(log: Any) -> list[tuple[dict, dict, dict]]:
    """(candidate, request, ad row as of the request) of every pair that has one, by search."""
    requests = {row["request_id"]: row for row in log.requests}
    rows = []
    for pair in log.candidates:
        request = requests[pair["request_id"]]
        versions = [ad for ad in log.ads if ad["ad_id"] == pair["ad_id"] and ad["valid_from"] <= request["event_time"]]
        if versions:
            rows.append((pair, request, max(versions, key=lambda ad: ad["valid_from"])))
    return rows


def encoded_one_by_one(schema: FeatureSchema, side: str, rows: list[dict], times: np.ndarray | None = None) -> Any:
    encoder = Encoder(schema, side)  # type: ignore[arg-type]
    table = pa.Table.from_pylist(rows)
    if times is not None:
        index = table.schema.get_field_index("clicks.time")
        table = table.set_column(index, "clicks.time", table["clicks.time"].cast(pa.list_(pa.timestamp("us", "UTC"))))
    return encoder.encode(table, event_time=times).encoded


def floats(values: list[Any]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], np.float32)


def read(schema: FeatureSchema, paths: LogPaths, directory: Path, **filters: Any) -> Examples:
    return encode_log(schema, paths, directory, **{"teacher": False, "labels": False, **filters})


def test_every_pair_has_its_request_its_ad_as_of_then_and_its_values(
    small_schema: FeatureSchema, small_log: Any, tmp_path: Path
) -> None:
    examples = read(small_schema, small_log.paths, tmp_path)
    rows = expected_rows(small_log)
    assert len(examples) == len(rows)
    assert examples.summary.dropped["no ad row as of the request"] == len(small_log.candidates) - len(rows) > 0

    times = np.array([int(request["event_time"].timestamp() * 1e6) for _, request, _ in rows])
    query = encoded_one_by_one(small_schema, "query", [request for _, request, _ in rows], times)
    np.testing.assert_array_equal(examples.query.take(examples.request_row).ids, query.ids)
    np.testing.assert_array_equal(examples.query.take(examples.request_row).floats, query.floats)
    np.testing.assert_array_equal(examples.event_time[examples.request_row], times)
    ad = encoded_one_by_one(small_schema, "ad", [ad for _, _, ad in rows])
    np.testing.assert_array_equal(examples.ad.take(examples.ad_row).ids, ad.ids)
    np.testing.assert_array_equal(examples.ad.take(examples.ad_row).floats, ad.floats)
    pair = encoded_one_by_one(small_schema, "pair", [pair for pair, _, _ in rows])
    assert examples.pair is not None
    np.testing.assert_array_equal(examples.pair.floats, pair.floats)

    assert [STAGES[code] for code in examples.stage] == [pair["stage"] for pair, _, _ in rows]
    for task, name in enumerate(small_schema.tasks):
        np.testing.assert_array_equal(examples.labels[:, task], floats([pair[f"label_{name}"] for pair, _, _ in rows]))
    np.testing.assert_array_equal(examples.weight, floats([pair["sample_weight"] or 1 for pair, _, _ in rows]))
    bids = [ad["bid"] if pair["bid"] is None else pair["bid"] for pair, _, ad in rows]
    np.testing.assert_array_equal(examples.bid, floats(bids))
    names = [None if code < 0 else examples.summary.objective_names[code] for code in examples.objective]
    assert names == [pair["objective"] or ad["objective"] for pair, _, ad in rows]
    assert np.isnan(examples.teacher).all()
    assert examples.teacher.shape == (len(rows), 2)
    assert [examples.request_ids[row].as_py() for row in examples.request_row] == [p["request_id"] for p, _, _ in rows]
    assert [examples.ad_ids[row].as_py() for row in examples.ad_row] == [pair["ad_id"] for pair, _, _ in rows]


def test_each_ad_row_in_use_is_encoded_once(small_schema: FeatureSchema, small_log: Any, tmp_path: Path) -> None:
    examples = read(small_schema, small_log.paths, tmp_path)
    versions = {(ad["ad_id"], ad["valid_from"]) for _, _, ad in expected_rows(small_log)}
    assert len(examples.ad) == len(examples.ad_ids) == len(versions)
    assert len(examples.query) == len(small_log.requests)


def test_filters_leave_only_what_they_name(small_schema: FeatureSchema, small_log: Any, tmp_path: Path) -> None:
    start: datetime = small_log.requests[10]["event_time"]
    end: datetime = small_log.requests[40]["event_time"]
    found = read(
        small_schema,
        small_log.paths,
        tmp_path,
        scenario="shopping",
        start=start,
        end=end,
        stages=("winner",),
        labels=True,
    )
    rows = [
        (pair, request)
        for pair, request, _ in expected_rows(small_log)
        if request["scenario"] == "shopping"
        and start <= request["event_time"] < end
        and pair["stage"] == "winner"
        and pair["label_click"] is not None
    ]
    assert [found.request_ids[row].as_py() for row in found.request_row] == [pair["request_id"] for pair, _ in rows]
    assert found.summary.scenario_names == ("shopping",)
    assert found.watermark == max(request["event_time"] for _, request in rows)


def test_teacher_keeps_scored_pairs_and_their_version(
    small_schema: FeatureSchema, small_log: Any, tmp_path: Path
) -> None:
    examples = read(small_schema, small_log.paths, tmp_path, teacher=True)
    scored = [pair for pair, _, _ in expected_rows(small_log) if pair["teacher_click"] is not None]
    np.testing.assert_array_equal(examples.teacher[:, 0], floats([pair["teacher_click"] for pair in scored]))
    np.testing.assert_array_equal(examples.teacher[:, 1], floats([pair["teacher_conversion"] for pair in scored]))
    assert examples.teacher_version == "series-1"


def test_outcomes_fill_the_labels_that_candidates_lack(
    small_schema: FeatureSchema, small_log: Any, tmp_path: Path
) -> None:
    candidates = pq.read_table(small_log.paths.candidates)
    shown = [row for row in small_log.candidates if row["label_click"] is not None]
    outcomes = [
        {**{k: row[k] for k in ("request_id", "ad_id", "label_click", "label_conversion")}, "shown": True}
        for row in shown
    ]
    outcomes.append(
        {"request_id": "r-unknown", "ad_id": "ad-1", "shown": False, "label_click": 1.0, "label_conversion": None}
    )
    (tmp_path / "outcomes").mkdir()
    pq.write_table(pa.Table.from_pylist(outcomes[::-1]), tmp_path / "outcomes" / "part.parquet")
    (tmp_path / "candidates").mkdir()
    pq.write_table(
        candidates.drop_columns(["label_click", "label_conversion"]), tmp_path / "candidates" / "part.parquet"
    )
    paths = replace(small_log.paths, candidates=str(tmp_path / "candidates"), outcomes=str(tmp_path / "outcomes"))
    joined = read(small_schema, paths, tmp_path / "cache", labels=True)
    straight = read(small_schema, small_log.paths, tmp_path / "cache", labels=True)
    np.testing.assert_array_equal(joined.labels, straight.labels)
    np.testing.assert_array_equal(joined.request_row, straight.request_row)

    pq.write_table(pa.Table.from_pylist([*outcomes, outcomes[0]]), tmp_path / "outcomes" / "part.parquet")
    with pytest.raises(LogError, match=f"{outcomes[0]['request_id']}.*comes twice"):
        read(small_schema, paths, tmp_path / "cache", labels=True)


def test_what_was_shown_is_a_winner(small_schema: FeatureSchema, small_log: Any, tmp_path: Path) -> None:
    """A log whose winners are told by ``outcomes/`` alone reads as one that says so itself."""
    winners = [row for row in small_log.candidates if row["stage"] == "winner"]
    untold = [
        {**row, "stage": "candidate" if row["stage"] == "winner" else row["stage"]} for row in small_log.candidates
    ]
    others = [row for row in small_log.candidates if row["stage"] != "winner"][::3]
    outcomes = [
        {"request_id": row["request_id"], "ad_id": row["ad_id"], "shown": shown}
        for rows, shown in ((winners, True), (others, False))
        for row in rows
    ]
    for name, rows in (("untold", untold), ("outcomes", outcomes)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "part.parquet")
    paths = replace(small_log.paths, candidates=str(tmp_path / "untold"), outcomes=str(tmp_path / "outcomes"))
    for stages in (None, ("winner",), ("eligible", "candidate")):
        straight = read(small_schema, small_log.paths, tmp_path / "cache", stages=stages)
        joined = read(small_schema, paths, tmp_path / "cache", stages=stages)
        np.testing.assert_array_equal(joined.stage, straight.stage)
        np.testing.assert_array_equal(joined.positions["candidates"], straight.positions["candidates"])
        np.testing.assert_array_equal(joined.labels, straight.labels)
        assert len(straight) > 0


def test_requests_that_name_their_ads_moment_are_joined_at_it(
    small_schema: FeatureSchema, small_log: Any, tmp_path: Path
) -> None:
    requests = pq.read_table(small_log.paths.requests)
    early = requests["event_time"][0].as_py()
    as_of = pa.array([early] * len(requests), pa.timestamp("us", "UTC"))
    (tmp_path / "requests").mkdir()
    pq.write_table(requests.append_column("ads_as_of", as_of), tmp_path / "requests" / "part.parquet")
    paths = replace(small_log.paths, requests=str(tmp_path / "requests"))
    examples = read(small_schema, paths, tmp_path / "cache")
    valid_from = examples.columns("ads", ["valid_from"])["valid_from"].to_pylist()
    assert all(moment <= early for moment in valid_from)


def test_a_second_call_maps_the_first_and_a_changed_log_is_read_anew(
    small_schema: FeatureSchema, small_log: Any, tmp_path: Path
) -> None:
    first = read(small_schema, small_log.paths, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = read(small_schema, small_log.paths, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    np.testing.assert_array_equal(first.query.ids, second.query.ids)
    assert isinstance(second.query.ids, np.memmap)

    file = next(Path(small_log.paths.ads).glob("*.parquet"))
    os.utime(file)
    read(small_schema, small_log.paths, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_columns_on_demand_and_selected_pairs_agree_with_the_log(
    small_schema: FeatureSchema, small_log: Any, tmp_path: Path
) -> None:
    examples = read(small_schema, small_log.paths, tmp_path, scenario="standard")
    chosen = examples.select(np.arange(len(examples))[::-3])
    pairs = chosen.columns("candidates", ["request_id", "ad_id", "absent"])
    assert pairs.column_names == ["request_id", "ad_id"]
    assert pairs["ad_id"].to_pylist() == [chosen.ad_ids[row].as_py() for row in chosen.ad_row]
    requests = chosen.columns("requests", ["request_id"])["request_id"].to_pylist()
    assert requests == chosen.request_ids.to_pylist()
    np.testing.assert_array_equal(chosen.stage, examples.stage[::-1][::3])
    assert len(chosen) == len(chosen.labels) == len(pairs)
    assert chosen.fingerprint == examples.select(np.arange(len(examples))[::-3]).fingerprint != examples.fingerprint


@pytest.mark.parametrize(
    ("column", "value", "filters", "message"),
    [
        ("teacher_version", "series-2", {"teacher": True}, "several teachers.*series-1, series-2"),
        ("teacher_version", None, {"teacher": True}, "teacher_version is missing"),
        ("request_id", None, {}, "candidates.parquet: column request_id is missing in row"),
        ("ad_id", None, {}, "candidates.parquet: column ad_id is missing in row"),
        ("stage", "served", {}, "stage holds 'served', expected one of eligible, candidate, winner"),
        ("objective", "install", {}, "objective holds 'install', expected one of click, conversion, impression"),
        ("label_click", 2.0, {}, r"label_click holds 2.0, expected a value in \[0, 1\]"),
        ("sample_weight", -1.0, {}, r"sample_weight is negative in 1 of [\d,]+ pairs, the first is -1.0, expected 0"),
        ("sample_weight", float("nan"), {}, r"sample_weight is NaN in 1 of [\d,]+ pairs, the first is nan"),
        ("bid", float("inf"), {}, "bid holds an infinite value"),
    ],
)
def test_a_faulty_candidate_is_refused(
    small_schema: FeatureSchema,
    small_log: Any,
    tmp_path: Path,
    column: str,
    value: object,
    filters: dict[str, bool],
    message: str,
) -> None:
    rows = [dict(row) for row in small_log.candidates]
    scored = next(i for i, row in enumerate(rows) if row["teacher_click"] is not None and row["ad_id"] != "ad-0")
    rows[scored][column] = value
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "candidates.parquet")
    paths = replace(small_log.paths, candidates=str(tmp_path / "candidates.parquet"))
    with pytest.raises(LogError, match=message):
        read(small_schema, paths, tmp_path / "cache", **filters)
    assert not [path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]


def test_pairs_that_all_weigh_nothing_are_refused(small_schema: FeatureSchema, small_log: Any, tmp_path: Path) -> None:
    """Of those that are read: the others do not count."""
    rows = [dict(row) for row in small_log.candidates]
    for row in rows:
        row["sample_weight"] = 0.0 if row["stage"] == "winner" else 1.0
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "candidates.parquet")
    paths = replace(small_log.paths, candidates=str(tmp_path / "candidates.parquet"))
    assert read(small_schema, paths, tmp_path / "cache").weight.min() == 0
    with pytest.raises(LogError, match=r"column sample_weight is 0 in all [\d,]+ pairs that are read"):
        read(small_schema, paths, tmp_path / "cache", stages=("winner",))


@pytest.mark.parametrize(("share", "silent", "purpose"), [(0.5, "later", "validate"), (0.5, "earlier", "train")])
def test_a_part_of_a_split_that_weighs_nothing_is_refused(
    small_schema: FeatureSchema, small_log: Any, tmp_path: Path, share: float, silent: str, purpose: str
) -> None:
    examples = read(small_schema, small_log.paths, tmp_path / "cache")
    training, validation = split_by_time(examples, share)
    times = examples.event_time[examples.request_row]
    later = times > training.event_time[training.request_row].max()
    assert validation is not None
    assert len(validation) == later.sum()
    weight = np.where(later == (silent == "later"), 0.0, examples.weight)
    with pytest.raises(LogError, match=f"column sample_weight is 0 in all .* pairs to {purpose} on"):
        split_by_time(replace(examples, weight=weight), share)


def test_missing_parts_are_named(small_schema: FeatureSchema, small_log: Any, tmp_path: Path) -> None:
    candidates = pq.read_table(small_log.paths.candidates)
    pq.write_table(candidates.drop_columns(["teacher_click"]), tmp_path / "unscored.parquet")
    unscored = replace(small_log.paths, candidates=str(tmp_path / "unscored.parquet"))
    with pytest.raises(LogError, match=r"teacher_click is missing.*adsieve heavy score"):
        read(small_schema, unscored, tmp_path / "cache", teacher=True)
    pq.write_table(candidates.drop_columns(["label_click"]), tmp_path / "unlabelled.parquet")
    unlabelled = replace(small_log.paths, candidates=str(tmp_path / "unlabelled.parquet"))
    with pytest.raises(LogError, match="label_click is missing, expected labels"):
        read(small_schema, unlabelled, tmp_path / "cache", labels=True)
    with pytest.raises(LogError, match=r"no request of scenario travel: [\d,]+ pairs are of other scenarios or times$"):
        read(small_schema, small_log.paths, tmp_path / "cache", scenario="travel")
    with pytest.raises(InputError, match="start: expected a time with a zone"):
        read(small_schema, small_log.paths, tmp_path / "cache", start=datetime(2026, 3, 1))
    with pytest.raises(InputError, match="stages: expected some of"):
        read(small_schema, small_log.paths, tmp_path / "cache", stages=("shown",))


def test_a_request_that_comes_twice_is_refused(small_schema: FeatureSchema, small_log: Any, tmp_path: Path) -> None:
    requests = pq.read_table(small_log.paths.requests)
    pq.write_table(pa.concat_tables([requests, requests.slice(3, 1)]), tmp_path / "requests.parquet")
    paths = replace(small_log.paths, requests=str(tmp_path / "requests.parquet"))
    with pytest.raises(LogError, match="'r-3' comes twice"):
        read(small_schema, paths, tmp_path / "cache")


def test_an_event_after_its_request_is_refused(small_schema: FeatureSchema, small_log: Any, tmp_path: Path) -> None:
    requests = pq.read_table(small_log.paths.requests)
    later = pa.array([row - timedelta(days=9) for row in requests["event_time"].to_pylist()], pa.timestamp("us", "UTC"))
    index = requests.schema.get_field_index("event_time")
    pq.write_table(requests.set_column(index, "event_time", later), tmp_path / "requests.parquet")
    with pytest.raises(LogError, match=r"clicks\.time"):
        read(small_schema, replace(small_log.paths, requests=str(tmp_path / "requests.parquet")), tmp_path / "cache")
