"""Historical rates and the truth, against plain loops over the log's rows."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.records import LogPaths, read_table
from distill.pool_facts import historical_rates, truth_of
from modeling.examples import Examples

ROWS = np.array([1500, 3, 700, 1583])


def _pair(examples: Examples, row: int) -> tuple[str, str]:
    return examples.request_ids[examples.request_row[row]].as_py(), examples.ad_ids[examples.ad_row[row]].as_py()


@pytest.mark.parametrize("in_outcomes", [False, True])
def test_rates_count_what_was_shown_before_the_day(examples: Examples, tmp_path: Path, in_outcomes: bool) -> None:
    log = examples.log
    times: dict[str, datetime] = {
        row["request_id"]: row["event_time"]
        for row in read_table(log.requests, ["request_id", "event_time"]).to_pylist()
    }
    candidates = read_table(log.candidates, ["request_id", "ad_id", "label_click", "label_conversion"])
    if in_outcomes:
        outcomes = candidates.append_column("shown", pa.array([True] * len(candidates)))
        pq.write_table(outcomes, tmp_path / "outcomes.parquet")
        pq.write_table(candidates.select(["request_id", "ad_id"]), tmp_path / "candidates.parquet")
        paths = {"outcomes": str(tmp_path / "outcomes.parquet"), "candidates": str(tmp_path / "candidates.parquet")}
        examples = replace(examples, log=replace(log, **paths))
    found = historical_rates(examples, ROWS)
    last = max(times[_pair(examples, row)[0]] for row in ROWS).date()
    for head, column in enumerate(("label_click", "label_conversion")):
        known = [row for row in candidates.to_pylist() if row[column] is not None]
        mean = np.mean([row[column] for row in known if times[row["request_id"]].date() < last])
        for place, row in enumerate(ROWS):
            request_id, ad_id = _pair(examples, row)
            day = times[request_id].date()
            own = [r[column] for r in known if r["ad_id"] == ad_id and times[r["request_id"]].date() < day]
            assert found[place, head] == pytest.approx((sum(own) + 1) / (len(own) + 1 / mean))
    assert len(np.unique(found)) > 4


def test_without_a_history_all_ads_have_the_same_rate(examples: Examples) -> None:
    first_day = np.flatnonzero(examples.event_time[examples.request_row] < examples.event_time.min() + 3_600_000_000)
    assert len(np.unique(historical_rates(examples, first_day))) == 1


def test_truth_is_found_by_request_and_ad(examples: Examples, tmp_path: Path) -> None:
    pairs = [_pair(examples, row) for row in range(len(examples))]
    order = np.random.default_rng(1).permutation(len(pairs))
    order = order[order != ROWS[2]]  # of one pair nothing is known
    table = {
        "request_id": [pairs[row][0] for row in order],
        "ad_id": [pairs[row][1] for row in order],
        "true_click": order / 1e4,
        "true_conversion": order / 1e5,
    }
    pq.write_table(pa.table(table), tmp_path / "truth.parquet")
    simulated = replace(examples, log=replace(examples.log, truth=str(tmp_path)))
    found = truth_of(simulated, ROWS)
    assert found is not None
    expected = np.column_stack([ROWS / 1e4, ROWS / 1e5])
    expected[2] = np.nan
    np.testing.assert_allclose(found, expected)


def test_a_log_without_truth_has_none(examples: Examples, tmp_path: Path) -> None:
    assert truth_of(examples, ROWS) is None
    pq.write_table(pa.table({"request_id": ["r"], "ad_id": ["a"], "true_click": [0.1]}), tmp_path / "truth.parquet")
    log: LogPaths = replace(examples.log, truth=str(tmp_path))
    assert truth_of(replace(examples, log=log), ROWS) is None  # not of every task
