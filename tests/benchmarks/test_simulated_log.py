from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.simulated_log import HELD_OUT, SimulatedLog, drawn, read_log, some_requests
from contracts.records import read_table
from modeling.examples import Examples


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> SimulatedLog:
    return read_log("tiny", tmp_path_factory.mktemp("simulated"))


def requests(examples: Examples) -> set[str]:
    return set(examples.request_ids.take(pa.array(np.unique(examples.request_row))).to_pylist())


def test_a_share_of_the_requests_is_drawn_whatever_else_is_asked_about() -> None:
    ids = pa.array([f"request {number}" for number in range(20_000)])
    found = drawn(ids, HELD_OUT)
    assert found.mean() == pytest.approx(HELD_OUT, abs=0.01)
    np.testing.assert_array_equal(drawn(ids[5:9], HELD_OUT), found[5:9])


def test_no_request_is_both_trained_on_and_judged(log: SimulatedLog) -> None:
    parts = [requests(part) for part in (log.training, log.held_out.examples, log.next_day.examples)]
    assert all(parts)
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_the_next_day_is_later_than_all_that_is_trained_on(log: SimulatedLog) -> None:
    after = log.next_day.examples
    for before in (log.training, log.held_out.examples):
        assert np.asarray(before.event_time)[before.request_row].max() < after.event_time[after.request_row].min()


def test_the_truth_is_that_of_the_pair(log: SimulatedLog) -> None:
    judged = log.held_out
    examples = judged.examples
    stored = {
        (row["request_id"], row["ad_id"]): (row["true_click"], row["true_conversion"])
        for row in read_table(examples.log.truth, ["request_id", "ad_id", "true_click", "true_conversion"]).to_pylist()
    }
    for at in range(0, len(examples), 37):
        key = (examples.request_ids[examples.request_row[at]].as_py(), examples.ad_ids[examples.ad_row[at]].as_py())
        assert judged.truth[at] == pytest.approx(stored[key])
    assert {len(column.codes) for column in judged.columns.values()} == {len(examples)}


def test_a_second_reading_finds_the_log_and_divides_it_alike(log: SimulatedLog) -> None:
    again = read_log("a name that is not asked for", Path(log.training.log.requests).parents[1])
    assert again.training.fingerprint == log.training.fingerprint


def test_some_requests_are_whole(log: SimulatedLog) -> None:
    some = some_requests(log.training, len(log.training) // 2)
    assert 0 < len(some) < len(log.training)
    kept = np.isin(log.training.request_row, np.unique(some.request_row))
    assert kept.sum() == len(some)
    assert some_requests(some, len(some)) is some
