"""Batches come in the catalogue's order whatever their threads do; an error stops all of them; counters add up."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from contracts.bundle import open_bundle
from indexing.counters import Counters
from indexing.embed import AdEmbedder
from indexing.pipeline import embed_batches


class Numbers:
    """A catalogue of numbers that tells how many batches were read."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def batches(self, columns: Any, batch_size: int, skip_rows: int = 0) -> Iterator[tuple[pa.Table, str]]:
        for number in range(skip_rows, self.count):
            self.read += 1
            yield pa.table({"number": [number]}), "numbers"


class Doubler:
    """Embeds a number as its double; earlier batches take longer, so that later ones are ready first."""

    def __init__(self, threads: int, fails_at: int | None = None) -> None:
        self.threads, self.fails_at = threads, fails_at
        self.seen: list[int] = []
        self.names: set[str] = set()
        self.towers: set[str] = set()

    def embed(self, table: pa.Table, *, source: str, check: int, spread: Callable[..., Iterator[int]]) -> Any:
        (number,) = spread(self.tower, table["number"].to_pylist())
        self.names.add(threading.current_thread().name)
        if number == self.fails_at:
            raise ValueError(f"{source}: number {number}")
        self.seen.append(number)
        return 2 * number

    def tower(self, number: int) -> int:
        self.towers.add(threading.current_thread().name)
        time.sleep(0.01 if number % 3 == 0 else 0.0)
        return number


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("embed")]


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_come_in_order(threads: int) -> None:
    embedder: Any = Doubler(threads)
    found = list(embed_batches(Numbers(40), embedder, ["number"], 1))  # type: ignore[arg-type]
    assert found == [2 * number for number in range(40)]
    assert len(embedder.names) <= threads
    assert len(embedder.towers) <= threads
    assert not embedder.towers & embedder.names
    assert running() == []


def test_rows_that_were_kept_before_are_skipped() -> None:
    embedder: Any = Doubler(2)
    assert list(embed_batches(Numbers(10), embedder, ["number"], 1, 7)) == [14, 16, 18]  # type: ignore[arg-type]
    assert sorted(embedder.seen) == [7, 8, 9]


def test_an_error_comes_after_the_batches_before_it_and_stops_all_threads() -> None:
    embedder: Any = Doubler(2, fails_at=11)
    catalog: Any = Numbers(1000)
    found: list[Any] = []
    with pytest.raises(ValueError, match="numbers: number 11"):
        found.extend(embed_batches(catalog, embedder, ["number"], 1))
    assert found == [2 * number for number in range(11)]
    assert running() == []
    assert max(embedder.seen) < catalog.read < 20


def test_a_reader_that_fails_stops_all_threads() -> None:
    class Broken(Numbers):
        def batches(self, *arguments: Any) -> Iterator[tuple[pa.Table, str]]:
            yield from super().batches([], 1)
            raise OSError("file gone")

    embedder: Any = Doubler(2)
    with pytest.raises(OSError, match="file gone"):
        list(embed_batches(Broken(8), embedder, ["number"], 1))  # type: ignore[arg-type]
    assert running() == []


def test_a_caller_that_stops_leaves_no_thread() -> None:
    embedder: Any = Doubler(2)
    batches: Any = embed_batches(Numbers(1000), embedder, ["number"], 1)  # type: ignore[arg-type]
    assert [next(batches), next(batches)] == [0, 2]
    batches.close()
    assert running() == []
    assert len(embedder.seen) < 20


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_batches_and_their_counters_equal_the_whole(
    bundles: Path, ads_table: Callable[..., pa.Table], precision: str
) -> None:
    table = ads_table(200)
    prices = table["price"].to_pylist()
    prices[3], prices[90] = float("nan"), float("inf")
    table = table.set_column(table.schema.get_field_index("price"), "price", pa.array(prices))
    two_tower, heavy = open_bundle(bundles / "two_tower"), open_bundle(bundles / "heavy")
    embedder = AdEmbedder(two_tower, heavy, precision=precision, threads=2)
    with ThreadPoolExecutor(2) as pool:
        whole = embedder.embed(table, source="ads", spread=pool.map)
    parts = [embedder.embed(table.slice(start, 23), source="ads") for start in range(0, 200, 23)]

    counters = Counters()
    for part in parts:
        counters = counters.merge(Counters.from_dict(part.counters.as_dict()))
    assert counters.dropped == whole.counters.dropped == {"features": 2, "bid": 0, "embedding": 0}
    assert counters.faults == whole.counters.faults
    assert counters.coverage == whole.counters.coverage
    assert sum(part.num_read for part in parts) == whole.num_read == 200
    assert pa.concat_arrays([part.ids for part in parts]).equals(whole.ids)
    for of_batch in (
        lambda batch: batch.valid_from,
        lambda batch: batch.attributes.bids,
        lambda batch: batch.attributes.status,
        lambda batch: batch.ads.heavy.ids,
    ):
        np.testing.assert_array_equal(np.concatenate([of_batch(part) for part in parts]), of_batch(whole))
    vectors = np.concatenate([part.ads.vectors for part in parts]).astype(np.float32)
    step = 1.0 if precision == "int8" else 2e-3
    np.testing.assert_allclose(vectors, whole.ads.vectors.astype(np.float32), rtol=step, atol=step)
    assert (whole.ads.scales is not None) == (precision == "int8")
