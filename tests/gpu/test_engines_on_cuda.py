"""GPU engines give what ONNX Runtime gives: replayed, padded, from several threads. Written without one, never run."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from contracts.errors import MismatchError
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from engines.parity import BF16_GATE, ParityGate, measure_parity
from engines.tensorrt_gpu import TensorRtEngine, open_tensorrt
from engines.torch_cuda import TorchCudaEngine, open_torch_cuda
from engines.torch_program_writer import write_program
from modeling.onnx_export import export

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BUCKETS = {"rows": (1, 8, 64), "length": (6,)}
GATES = {"fp32": ParityGate(1e-5), "bf16": BF16_GATE}
AXES = {"x": {0: "rows", 1: "length"}, "mask": {0: "rows", 1: "length"}}


class Pooled(nn.Module):
    """Masked mean of events through an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.LayerNorm(256), nn.Linear(256, 2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor]:
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0)
        return (torch.sigmoid(self.layers(pooled)),)


def arrays(rows: int, length: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, length + 1, rows)
    return {
        "x": rng.normal(size=(rows, length, 32)).astype(np.float32),
        "mask": (np.arange(length) < lengths[:, None]).astype(np.float32),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One module as an ONNX graph and as a program."""
    torch.manual_seed(1)
    module, directory = Pooled().eval(), tmp_path_factory.mktemp("twins")
    inputs = {name: torch.from_numpy(array) for name, array in arrays(5).items()}
    export(module, inputs, directory / "graph.onnx", dynamic=AXES, output_names=("probabilities",))
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length")
    program = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=({0: rows, 1: length},) * 2)
    path = directory / "graph.program.safetensors"
    write_program(program, path, input_names=("x", "mask"), output_names=("probabilities",), dynamic=AXES)
    return directory / "graph.onnx", path


@pytest.fixture(params=["torch_cuda", "tensorrt"])
def opened(request, files, tmp_path):
    """Opens an engine behind its buckets."""
    if request.param == "torch_cuda":
        return lambda precision: open_torch_cuda(files[1], buckets=BUCKETS, zeros=("length",), precision=precision)
    pytest.importorskip("tensorrt")
    return lambda precision: open_tensorrt(
        files[0], buckets=BUCKETS, cache=tmp_path, zeros=("length",), precision=precision
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_bucket_equals_onnx_runtime(files, opened, precision):
    reference, engine = OnnxRuntimeEngine(files[0], threads=1), opened(precision)
    for rows in (64, 1, 8, 3, 50, 1, 64):  # in an order in which a stale replay would show
        inputs = arrays(rows, seed=rows)
        saved = {f"in.{name}": array for name, array in inputs.items()}
        saved |= {f"out.{name}": array for name, array in reference.run(inputs).items()}
        parity = measure_parity(engine.run, saved, source=f"{precision} {rows}")
        gate = GATES[precision] if rows > 20 else ParityGate(GATES[precision].tolerance)  # few rows have no order
        assert gate.refusal(parity) is None


def test_shorter_histories_are_padded(files, opened):
    inputs = arrays(8, length=4)
    expected = OnnxRuntimeEngine(files[0], threads=1).run(inputs)["probabilities"]
    np.testing.assert_allclose(opened("fp32").run(inputs)["probabilities"], expected, atol=1e-5)


def test_several_threads_and_results_that_stay(files, opened):
    reference, engine = OnnxRuntimeEngine(files[0], threads=1), opened("fp32")
    requests = [arrays(1 + seed % 60, seed=seed) for seed in range(64)]
    with ThreadPoolExecutor(8) as pool:
        computed = list(pool.map(engine.run, requests))
    for inputs, outputs in zip(requests, computed, strict=True):
        expected = reference.run(inputs)["probabilities"]
        np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)


def test_above_the_largest_bucket_the_program_runs_eagerly(files):
    inputs = arrays(100)
    expected = OnnxRuntimeEngine(files[0], threads=1).run(inputs)["probabilities"]
    engine = open_torch_cuda(files[1], buckets=BUCKETS, precision="fp32")
    np.testing.assert_allclose(engine.run(inputs)["probabilities"], expected, atol=1e-5)


def test_above_the_largest_bucket_tensorrt_refuses(files, tmp_path):
    pytest.importorskip("tensorrt")
    engine = TensorRtEngine(files[0], buckets=BUCKETS, cache=tmp_path, precision="fp32")
    with pytest.raises(MismatchError, match="no bucket has shapes"):
        engine.run(arrays(100))


def test_replaying_equals_running_eagerly_bit_for_bit(files):
    eager = TorchCudaEngine(files[1], precision="bf16")
    captured = TorchCudaEngine(files[1], buckets=BUCKETS, precision="bf16")
    for rows in BUCKETS["rows"]:
        inputs = arrays(rows, seed=rows)
        np.testing.assert_array_equal(captured.run(inputs)["probabilities"], eager.run(inputs)["probabilities"])


def test_a_plan_is_built_once(files, tmp_path):
    pytest.importorskip("tensorrt")
    for _ in range(2):
        TensorRtEngine(files[0], buckets=BUCKETS, cache=tmp_path)
    assert len(list(tmp_path.glob("*.plan"))) == 1
