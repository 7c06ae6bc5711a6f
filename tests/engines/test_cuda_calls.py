"""The order of a captured call, against a stand-in for CUDA that records and replays on the CPU."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engines.cuda_calls import DeviceCall, capture_all, check_device
from engines.tensor_spec import TensorSpec

INPUTS = [
    TensorSpec(name="x", dtype="float32", shape=["rows", 3]),
    TensorSpec(name="keep", dtype="bool", shape=["rows"]),
]
OUTPUTS = [
    TensorSpec(name="y", dtype="float32", shape=["rows", 3]),
    TensorSpec(name="count", dtype="int64", shape=[]),
]


class Recorded:
    """torch as far as a call uses it. A graph replays the functions that ran while it was captured."""

    def __init__(self):
        self.log = []
        self.uint8, self.float32, self.bool, self.int64 = torch.uint8, torch.float32, torch.bool, torch.int64
        self.cuda = SimpleNamespace(
            CUDAGraph=lambda: SimpleNamespace(replay=None),
            Stream=lambda device: SimpleNamespace(
                wait_stream=lambda other: self.log.append("wait"), synchronize=lambda: self.log.append("synchronize")
            ),
            current_stream=lambda device: None,
            graph_pool_handle=lambda: "pool",
            stream=self.stream,
            graph=self.graph,
        )

    def empty(self, nbytes, *, dtype, device=None, pin_memory=False):
        if pin_memory:
            self.log.append("pinned")
        return torch.full((nbytes,), 77, dtype=dtype)

    def empty_like(self, tensor, device):
        return torch.empty_like(tensor)

    @contextmanager
    def stream(self, stream):
        yield

    @contextmanager
    def graph(self, graph, *, pool, stream, capture_error_mode):
        self.log.append(f"capture into {pool}")
        start = len(self.log)
        yield
        calls = self.log[start:]
        graph.replay = lambda: [call() for call in calls if callable(call)]


@pytest.fixture
def recorded():
    return Recorded()


def make_call(recorded, rows):
    results = {}

    def compute(x, keep):
        results["y"].copy_(torch.where(keep[:, None], 2 * x, 0))
        results["count"].copy_(keep.sum())

    def forward(inputs):
        x, keep = inputs
        results.setdefault("y", torch.empty(rows, 3))
        results.setdefault("count", torch.empty((), dtype=torch.int64))
        recorded.log.append(lambda: compute(x, keep))
        compute(x, keep)
        return results["y"], results["count"]

    device = SimpleNamespace(type="cuda")
    shapes = {"x": (rows, 3), "keep": (rows,)}
    return DeviceCall(recorded, device, inputs=INPUTS, shapes=shapes, outputs=OUTPUTS, forward=forward), results


def replayed(call, results):
    """Let a replay also do the copies that the capture did, which the stand-in cannot see."""
    replay = call._graph.replay

    def run():
        replay()
        call._packed([results["y"], results["count"]], into=call._results)

    call._graph.replay = run


def test_a_captured_call_computes_from_its_new_inputs(recorded):
    call, results = make_call(recorded, 4)
    capture_all(recorded, None, [call])
    replayed(call, results)
    kept = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, keep = rng.normal(size=(4, 3)).astype(np.float32), rng.random(4) < 0.5
        outputs = call.run({"x": x, "keep": keep})
        expected = {"y": np.where(keep[:, None], 2 * x, 0), "count": keep.sum()}
        kept.append((outputs, expected))
    for outputs, expected in kept:
        np.testing.assert_array_equal(outputs["y"], expected["y"])
        assert outputs["count"] == expected["count"]


def test_two_warm_ups_come_before_a_capture_and_buckets_share_a_pool(recorded):
    calls = [make_call(recorded, rows)[0] for rows in (8, 2)]
    capture_all(recorded, None, calls)
    words = ["run" if callable(entry) else entry for entry in recorded.log]
    one = ["wait", "run", "run", "synchronize", "capture into pool", "run", "pinned"]
    assert words == ["pinned", "pinned", *one, *one]


def test_an_absent_device_is_named():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(Exception, match=r"tensorrt needs a CUDA device: torch .*, built for CUDA .*, sees 0"):
        check_device(torch, "cuda:0", engine="tensorrt")
    check_device(torch, "cpu", engine="torch_cuda")
