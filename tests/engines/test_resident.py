"""Resident vectors, through the calls of a GPU on the CPU: equal to plain sums, ties by position, padded or not."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from engines.device_memory import DeviceMemory, DeviceMemoryError
from engines.gpu import Gpu
from engines.resident import ResidentPins, _best, _top

HEADS, DIM, ADS = 2, 8, 300


def plain_logits(vectors, bias, scales, query, rows):
    """One ad and head at a time, in fp64."""
    logits = np.empty((len(rows), HEADS))
    for place, row in enumerate(rows):
        for head in range(HEADS):
            vector = vectors[row, head * DIM : (head + 1) * DIM].astype(np.float64)
            scale = 1.0 if scales is None else float(scales[row, head])
            dot = scale * float(vector @ query[head, :DIM].astype(np.float64))
            logits[place, head] = dot + float(bias[row, head]) * query[head, DIM] + query[head, DIM + 1]
    return logits


def arrays(precision, seed=0):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(ADS, HEADS * DIM))
    bias, query = rng.normal(size=(ADS, HEADS)), rng.normal(size=(HEADS, DIM + 2))
    scales = rng.uniform(0.001, 0.02, (ADS, HEADS)).astype(np.float32) if precision == "int8" else None
    stored = np.rint(40 * vectors).astype(np.int8) if precision == "int8" else vectors.astype(precision)
    return stored, bias.astype(np.float32), scales, query.astype(np.float32)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_logits_and_the_best_equal_plain_sums(precision):
    vectors, bias, scales, query = arrays(precision)
    pins = ResidentPins(vectors, bias, scales, row_buckets=(16, 512), survivor_buckets=(4, 64), gpu=Gpu(device="cpu"))
    rng = np.random.default_rng(1)
    for count, k in [(1, 1), (5, 4), (16, 9), (17, 3), (300, 60), (40, 64)]:
        rows = rng.permutation(ADS)[:count]
        rows[count // 2] = -1
        absent = np.array([0.5, -1.0], np.float32)
        wanted = plain_logits(vectors, bias, scales, query, rows)
        wanted[count // 2] = absent
        np.testing.assert_allclose(pins.logits(rows, query, absent=absent), wanted, rtol=1e-5, atol=1e-5)
        heads, bids = rng.integers(0, HEADS + 1, count), rng.uniform(0.1, 3, count)
        chances = np.column_stack([1 / (1 + np.exp(-wanted)), np.ones(count)])
        utilities = bids * chances[np.arange(count), heads]
        found = pins.best(rows, heads, bids, query, k=k, absent=absent)
        assert len(found.positions) == len(set(found.positions.tolist())) == min(k, count)
        order = sorted(range(count), key=lambda at: (-utilities[at], at))[:k]
        np.testing.assert_allclose(found.utilities, utilities[order], rtol=1e-5)
        np.testing.assert_allclose(utilities[found.positions], utilities[order], rtol=1e-5)
        np.testing.assert_allclose(found.logits, wanted[found.positions], rtol=1e-5, atol=1e-5)


def test_equal_utilities_stand_in_the_order_of_the_request():
    vectors, bias, scales, query = arrays("float16")
    pins = ResidentPins(vectors, bias, scales, row_buckets=(64,), survivor_buckets=(8,), gpu=Gpu(device="cpu"))
    rows = np.full(50, 7)
    rows[20] = 9
    bids = np.ones(50)
    bids[20] = 1e6
    assert pins.best(rows, np.zeros(50), bids, query, k=6).positions.tolist() == [20, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("values", [2, 3, 40])
def test_the_best_of_many_equal_numbers(values):
    rng = np.random.default_rng(values)
    for size, k in [(1, 1), (9, 4), (200, 199), (200, 200), (513, 128)]:
        numbers = rng.integers(0, values, size).astype(float)
        numbers[rng.random(size) < 0.3] = -np.inf
        wanted = sorted(range(size), key=lambda at: (-numbers[at], at))[:k]
        assert _top(torch, torch.from_numpy(numbers), k).tolist() == wanted


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_no_step_looks_at_values(precision):
    """A captured graph has static shapes and never waits for the host: without values all of it can still be traced."""
    columns = {"vectors": (getattr(torch, precision), 16), "bias": (torch.float32, 2), "scales": (torch.float32, 2)}
    if precision != "int8":
        del columns["scales"]
    asked = [(torch.int32, 64), (torch.float32, 2, 10), (torch.float32, 2), (torch.int8, 64), (torch.float64, 64)]
    with FakeTensorMode():
        held = {name: torch.empty(100, width, dtype=dtype) for name, (dtype, width) in columns.items()}
        inputs = [torch.empty(*shape, dtype=dtype) for dtype, *shape in [*asked, (torch.bool, 64)]]
        found = _best(torch, held, 8, inputs)
        with pytest.raises(DataDependentOutputException):
            inputs[0].max().item()  # what would be refused
    assert [(tuple(part.shape), part.dtype) for part in found] == [
        ((8, 2), torch.float32),
        ((8,), torch.int64),
        ((8,), torch.float64),
    ]


def test_rows_that_come_later_are_scored_like_the_first():
    vectors, bias, scales, query = arrays("int8")
    whole = ResidentPins(vectors, bias, scales, row_buckets=(512,), gpu=Gpu(device="cpu"))
    grown = ResidentPins(vectors[:200], bias[:200], scales[:200], spare=100, row_buckets=(512,), gpu=Gpu(device="cpu"))
    assert grown.append(vectors[200:240], bias[200:240], scales[200:240]) == 200
    assert grown.append(vectors[240:], bias[240:], scales[240:]) == 240
    rows = np.random.default_rng(3).permutation(ADS)
    np.testing.assert_array_equal(grown.logits(rows, query), whole.logits(rows, query))
    assert grown.room == 0
    with pytest.raises(Exception, match="1 rows do not fit beside 300, room is for 0"):
        grown.append(vectors[:1], bias[:1], scales[:1])


def test_a_mapped_array_comes_over_in_pieces(tmp_path, monkeypatch):
    vectors, bias, scales, query = arrays("float16")
    np.save(tmp_path / "vectors.npy", vectors)
    monkeypatch.setattr("engines.resident.UPLOAD_BYTES", 7 * vectors[:1].nbytes)
    mapped = ResidentPins(
        np.load(tmp_path / "vectors.npy", mmap_mode="r"), bias, scales, row_buckets=(512,), gpu=Gpu(device="cpu")
    )
    whole = ResidentPins(vectors, bias, scales, row_buckets=(512,), gpu=Gpu(device="cpu"))
    rows = np.arange(ADS)
    np.testing.assert_array_equal(mapped.logits(rows, query), whole.logits(rows, query))


def test_it_is_counted_for_as_long_as_it_lives():
    vectors, bias, scales, _ = arrays("float32")
    memory = DeviceMemory(1 << 30)
    pins = ResidentPins(vectors, bias, scales, row_buckets=(64,), gpu=Gpu(device="cpu", memory=memory))
    assert memory.held()["vectors"] >= vectors.nbytes + bias.nbytes
    with pytest.raises(DeviceMemoryError, match=r"vectors needs \d+ MiB of the device, 0 MiB of 1 MiB are held"):
        ResidentPins(vectors, bias, scales, row_buckets=(64,), gpu=Gpu(device="cpu", memory=DeviceMemory(10)))
    del pins
    assert memory.held() == {}
