"""Weights of pairs, their split by time, and batches within a day."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import LogError
from contracts.records import LogPaths
from contracts.schema import FeatureSchema
from distill.batches import DayBatches
from distill.config import DistillConfig
from distill.data import pair_weights, read_scored
from modeling.examples import Examples

DAY_US = 86_400_000_000


def _changed(config: DistillConfig, **changes: object) -> DistillConfig:
    return msgspec.structs.replace(config, **changes)


def test_weight_is_sample_weight_times_stage_weight(examples: Examples, config: DistillConfig) -> None:
    weights = pair_weights(examples, _changed(config, stage_weights={"winner": 3.0, "eligible": 0.5}))
    expected = [{0: 2.0 * 0.5, 1: 2.0, 2: 3.0}[stage] for stage in examples.stage.tolist()]
    np.testing.assert_allclose(weights, expected)


def test_explored_ads_weigh_their_inverse_propensity(examples: Examples, config: DistillConfig) -> None:
    explored = examples.columns("candidates", ["explore_propensity"])["explore_propensity"].is_valid().to_numpy()
    plain = pair_weights(examples, config)
    np.testing.assert_allclose(
        pair_weights(examples, _changed(config, propensity_weights=True)), plain * np.where(explored, 20, 1)
    )
    limited = _changed(config, propensity_weights=True, max_propensity_weight=5.0)
    np.testing.assert_allclose(pair_weights(examples, limited), plain * np.where(explored, 5, 1))


@pytest.mark.parametrize(("value", "message"), [(0.0, "holds 0.0"), (1.5, "holds 1.5")])
def test_impossible_propensities_are_refused(
    value: float, message: str, log: LogPaths, schema: FeatureSchema, config: DistillConfig, tmp_path: Path
) -> None:
    table = pq.read_table(log.candidates)
    index = table.schema.get_field_index("explore_propensity")
    table = table.set_column(index, "explore_propensity", pa.array([value] * len(table)))
    pq.write_table(table, tmp_path / "candidates.parquet")
    altered = replace(log, candidates=str(tmp_path / "candidates.parquet"))
    examples = read_scored(schema, altered, tmp_path / "cache", scenario="shopping")
    with pytest.raises(LogError, match=rf"column explore_propensity {message}, expected a value in \(0, 1\]"):
        pair_weights(examples, _changed(config, propensity_weights=True))


def test_weights_of_nothing_are_refused(examples: Examples, config: DistillConfig) -> None:
    nothing = dict.fromkeys(("eligible", "candidate", "winner"), 0.0)
    with pytest.raises(LogError, match="every pair weighs 0; see sample_weight and stage_weights"):
        pair_weights(examples, _changed(config, stage_weights=nothing))


def _epoch(batches: DayBatches, epoch: int, start: int = 0) -> list[np.ndarray]:
    return [batch.rows.numpy() for batch in batches.epoch(epoch, start)]


def test_an_epoch_holds_every_pair_once(examples: Examples) -> None:
    rows = _epoch(DayBatches(examples, pairs_per_batch=100, seed=0), 0)
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(len(examples)))
    assert all(20 <= len(batch) <= 180 for batch in rows)


def test_a_batch_holds_whole_requests_of_one_day(examples: Examples) -> None:
    seen: set[int] = set()
    for rows in _epoch(DayBatches(examples, pairs_per_batch=100, seed=0), 0):
        requests = set(examples.request_row[rows].tolist())
        assert len(set((examples.event_time[examples.request_row[rows]] // DAY_US).tolist())) == 1
        assert not seen & requests
        seen |= requests


def test_order_depends_on_seed_and_epoch_alone(examples: Examples) -> None:
    first, second = (DayBatches(examples, pairs_per_batch=100, seed=0) for _ in range(2))
    for one, other in zip(_epoch(first, 3), _epoch(second, 3), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not all(np.array_equal(a, b) for a, b in zip(_epoch(first, 0), _epoch(first, 1), strict=True))
    for one, other in zip(_epoch(first, 1)[2:], _epoch(first, 1, start=2), strict=True):
        np.testing.assert_array_equal(one, other)


def test_length_is_the_number_of_batches(examples: Examples) -> None:
    for size in (1, 50, 100, 10_000):
        batches = DayBatches(examples, pairs_per_batch=size, seed=0)
        assert len(_epoch(batches, 0)) <= len(batches)
    assert len(_epoch(batches, 0)) == len(batches) == 3


def test_size_must_be_positive(examples: Examples) -> None:
    with pytest.raises(ValueError, match="pairs_per_batch must be 1 or more, got 0"):
        DayBatches(examples, pairs_per_batch=0, seed=0)
