"""Batches: every pair once an epoch, with its own request and ad, in an order that seed and epoch decide."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from contracts.schema import FeatureSchema
from modeling.batches import Batch, ShuffledBatches, gather, ordered_batches, prefetch
from modeling.examples import Examples, encode_log


@pytest.fixture(scope="module")
def examples(small_schema: FeatureSchema, small_log: Any, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return encode_log(small_schema, small_log.paths, tmp_path_factory.mktemp("cache"), teacher=True, labels=False)


def assert_holds(batch: Batch, examples: Examples) -> None:
    """The batch's rows, repeated as its indices say, are the pairs' own."""
    rows = batch.rows.numpy()
    request_rows, ad_rows = examples.request_row[rows], examples.ad_row[rows]
    np.testing.assert_array_equal(batch.query.ids[batch.request_index], examples.query.ids[request_rows])
    np.testing.assert_array_equal(batch.query.floats[batch.request_index], examples.query.floats[request_rows])
    np.testing.assert_array_equal(batch.ad.ids[batch.ad_index], examples.ad.ids[ad_rows])
    np.testing.assert_array_equal(batch.ad.floats[batch.ad_index], examples.ad.floats[ad_rows])
    assert batch.pair is not None
    assert examples.pair is not None
    np.testing.assert_array_equal(batch.pair.floats, examples.pair.floats[rows])
    assert len(batch.query.ids) == len(set(request_rows))
    assert len(batch.ad.ids) == len(set(ad_rows))
    for name in ("labels", "teacher", "weight", "stage"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(examples, name)[rows])
    assert len(batch) == len(rows)


def rows_of(batches: Iterator[Batch]) -> list[list[int]]:
    return [batch.rows.tolist() for batch in batches]


@pytest.mark.parametrize("by", ["request", "pair"])
def test_an_epoch_holds_every_pair_once(examples: Examples, by: Any) -> None:
    source = ShuffledBatches(examples, pairs_per_batch=16, by=by, seed=3)
    batches = list(source.epoch(0))
    for batch in batches:
        assert_holds(batch, examples)
    rows = np.concatenate([batch.rows for batch in batches])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(examples)))
    assert not (np.diff(rows) > 0).all()
    assert abs(len(batches) - len(source)) <= 1


def test_whole_requests_stay_in_one_batch_even_when_their_pairs_are_apart(examples: Examples) -> None:
    mixed = examples.select(np.random.default_rng(0).permutation(len(examples)))
    largest = np.bincount(mixed.request_row).max()
    seen: set[int] = set()
    for batch in ShuffledBatches(mixed, pairs_per_batch=16, by="request").epoch(0):
        requests = set(mixed.request_row[batch.rows.numpy()].tolist())
        assert not requests & seen
        seen |= requests
        assert len(batch) < 16 + largest
        assert_holds(batch, mixed)


@pytest.mark.parametrize("by", ["request", "pair"])
def test_seed_and_epoch_alone_decide_the_order(examples: Examples, by: Any) -> None:
    one, same = (ShuffledBatches(examples, pairs_per_batch=16, by=by, seed=3) for _ in range(2))
    other = ShuffledBatches(examples, pairs_per_batch=16, by=by, seed=4)
    first = rows_of(one.epoch(0))
    assert rows_of(same.epoch(0)) == first
    assert rows_of(one.epoch(1)) != first
    assert rows_of(other.epoch(0)) != first
    assert rows_of(one.epoch(0, start=4)) == first[4:]
    assert rows_of(one.epoch(0, start=len(first))) == []


def test_ordered_batches_keep_the_order(examples: Examples) -> None:
    rows = [row for batch in rows_of(ordered_batches(examples, pairs_per_batch=7)) for row in batch]
    assert rows == list(range(len(examples)))


def test_sides_leave_out_the_pair_where_there_is_none(examples: Examples) -> None:
    batch = gather(examples, np.array([5, 1]))
    assert list(batch.sides()) == ["query", "ad", "pair"]
    assert batch.rows.tolist() == [5, 1]
    assert batch.request_index.dtype == torch.int64


def test_a_batch_of_no_pairs_is_refused(examples: Examples) -> None:
    with pytest.raises(ValueError, match="pairs_per_batch must be 1 or more, got 0"):
        ShuffledBatches(examples, pairs_per_batch=0, by="pair")


def test_prefetch_raises_what_its_iterator_raises() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken at the second")

    found = prefetch(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="broken at the second"):
        next(found)


def test_prefetch_runs_ahead_and_stops_when_it_is_left() -> None:
    made: list[int] = []
    four = threading.Event()

    def items() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            if number == 3:
                four.set()
            yield number

    found = prefetch(items(), ahead=2)
    assert next(found) == 0
    assert four.wait(10)
    found.close()  # type: ignore[attr-defined]
    after = len(made)
    time.sleep(0.05)
    assert len(made) == after < 1000
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_batches_do_not_touch_the_mapped_files(examples: Examples) -> None:
    batch = gather(examples, np.arange(4))
    before = examples.query.ids[examples.request_row[:4]].copy()
    batch.query.ids.fill_(-1)
    np.testing.assert_array_equal(examples.query.ids[examples.request_row[:4]], before)
