"""The engine's program, packing and eager path, on the CPU: equal to ONNX Runtime on the same module's graph."""

import numpy as np
import pytest
import torch
from torch import nn

from contracts.errors import AdsieveError, MismatchError
from engines.gpu import Gpu
from engines.onnxruntime_cpu import OnnxRuntimeEngine, onnx_specs
from engines.torch_cuda import TorchCudaEngine, open_torch_cuda
from engines.torch_program_writer import write_program
from modeling.onnx_export import export

ROWS, LENGTH = 6, 4


class Pooled(nn.Module):
    """Masked mean of events through a small MLP."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.LayerNorm(32), nn.Linear(32, 3))

    def forward(self, x, mask):
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0)
        return torch.sigmoid(self.layers(pooled)), pooled


def arrays(rows=ROWS, length=LENGTH, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, length, 8)).astype(np.float32),
        "mask": (rng.random((rows, length)) < 0.5).astype(np.float32),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One module as an ONNX graph and as a program."""
    torch.manual_seed(1)
    module, directory = Pooled().eval(), tmp_path_factory.mktemp("twins")
    inputs = {name: torch.from_numpy(array) for name, array in arrays().items()}
    names = {"x": {0: "rows", 1: "length"}, "mask": {0: "rows", 1: "length"}}
    export(module, inputs, directory / "graph.onnx", dynamic=names, output_names=("probabilities", "pooled"))
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length")
    shapes = ({0: rows, 1: length}, {0: rows, 1: length})
    program = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=shapes)
    path = directory / "graph.program.safetensors"
    write_program(program, path, input_names=("x", "mask"), output_names=("probabilities", "pooled"), dynamic=names)
    return directory / "graph.onnx", path


@pytest.mark.parametrize(("rows", "length"), [(6, 4), (1, 1), (33, 9)])
def test_equals_onnx_runtime(files, rows, length):
    engine = TorchCudaEngine(files[1], gpu=Gpu(device="cpu"), precision="fp32")
    inputs = arrays(rows, length, seed=rows)
    expected = OnnxRuntimeEngine(files[0], threads=1).run(inputs)
    computed = engine.run(inputs)
    assert (engine.name, engine.inputs, engine.outputs) == ("torch_cuda", ("x", "mask"), ("probabilities", "pooled"))
    for name, values in expected.items():
        np.testing.assert_allclose(computed[name], values, atol=1e-6)
        assert (computed[name].dtype, computed[name].shape) == (values.dtype, values.shape)


@pytest.mark.parametrize(("rows", "length"), [(6, 4), (1, 1), (33, 9)])
def test_buckets_of_the_dimensions_that_the_program_names(files, rows, length):
    engine = open_torch_cuda(
        files[1],
        buckets={"rows": (8, 16), "length": (5, 10)},
        zeros=("length",),
        precision="fp32",
        gpu=Gpu(device="cpu"),
    )
    inputs = arrays(rows, length, seed=rows)
    expected = OnnxRuntimeEngine(files[0], threads=1).run(inputs)
    for name, values in engine.run(inputs).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)


def test_the_twins_name_the_same_dimensions(files):
    engine = TorchCudaEngine(files[1], gpu=Gpu(device="cpu"))
    assert onnx_specs(files[0]) == (engine.input_specs, engine.output_specs)


def test_bf16_keeps_types_and_is_near(files):
    inputs = arrays(rows=64)
    exact = TorchCudaEngine(files[1], gpu=Gpu(device="cpu"), precision="fp32").run(inputs)
    rounded = TorchCudaEngine(files[1], gpu=Gpu(device="cpu"), precision="bf16").run(inputs)
    error = np.abs(rounded["probabilities"] - exact["probabilities"]).max()
    assert rounded["probabilities"].dtype == np.float32
    assert 1e-6 < error < 1e-2


def test_results_outlive_later_calls(files):
    engine = TorchCudaEngine(files[1], gpu=Gpu(device="cpu"))
    first = engine.run(arrays())
    kept = {name: values.copy() for name, values in first.items()}
    engine.run(arrays(seed=9))
    for name, values in kept.items():
        np.testing.assert_array_equal(first[name], values)


def test_refuses_other_inputs(files):
    engine = TorchCudaEngine(files[1], gpu=Gpu(device="cpu"))
    inputs = arrays()
    with pytest.raises(MismatchError, match=r"takes inputs \['mask', 'x'\], got \['x'\]"):
        engine.run({"x": inputs["x"]})
    with pytest.raises(MismatchError, match=r"input x takes float32 \['rows', 'length', 8\], got float64 \[6, 4, 8\]"):
        engine.run(inputs | {"x": inputs["x"].astype(np.float64)})
    with pytest.raises(MismatchError, match=r"got float32 \[6, 4, 7\]"):
        engine.run(inputs | {"x": inputs["x"][..., :7]})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_what_is_missing(files):
    with pytest.raises(AdsieveError, match="torch_cuda needs a CUDA device: torch .* sees 0"):
        TorchCudaEngine(files[1])


def test_refuses_other_precisions(files):
    with pytest.raises(ValueError, match="precision must be 'fp32' or 'bf16', got 'fp16'"):
        TorchCudaEngine(files[1], gpu=Gpu(device="cpu"), precision="fp16")
