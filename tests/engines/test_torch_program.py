"""A program file gives what the module gives, at any size, and reading one runs nothing but ATen operators."""

import json
import struct

import numpy as np
import pytest
import torch
from torch import nn

from contracts.errors import ArtifactError
from engines.torch_program import HEADER, read_program
from engines.torch_program_writer import write_program

DYNAMIC = {
    "user": {0: "requests"},
    "events": {0: "requests", 1: "clicks"},
    "mask": {0: "requests", 1: "clicks"},
    "ads": {0: "requests", 1: "ads"},
}
INPUTS, OUTPUTS = ("user", "events", "mask", "ads"), ("logits", "mixed", "attended")


class Blocks(nn.Module):
    """What rankers are made of: attention with a mask, norms, products a token, splits, sizes, constants, writes."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.norm, self.layer_norm = nn.RMSNorm(8), nn.LayerNorm(8)
        self.tokens = nn.Parameter(torch.randn(4, 2, 6))
        self.register_buffer("temperature", torch.tensor(0.7))
        self.register_buffer("offset", torch.arange(8.0), persistent=False)

    def forward(self, user, events, mask, ads):
        requests, width = ads.shape[:2]
        keys = self.key(events)
        logits = self.query(ads) @ keys.transpose(1, 2) * self.temperature
        logits = logits.masked_fill(mask[:, None, :] == 0, float("-inf"))
        attended = torch.softmax(logits, -1).nan_to_num(0.0) @ keys
        x = self.layer_norm((self.norm(attended) + user[:, None]).flatten(0, 1))
        gate, up = torch.bmm(x.reshape(-1, 4, 2).transpose(0, 1), self.tokens).transpose(0, 1).chunk(2, -1)
        y = nn.functional.pad((nn.functional.silu(gate) * up).flatten(1), (0, 2), value=0.5)[:, :8]
        y = y + self.offset + torch.arange(8, device=y.device)
        y[:, 0] = 0
        return self.head(x + y).unflatten(0, (requests, width)), torch.cat([x, y], -1), attended


def arrays(requests=3, width=5, length=7, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "user": rng.normal(size=(requests, 8)).astype(np.float32),
        "events": rng.normal(size=(requests, length, 8)).astype(np.float32),
        "mask": (rng.random((requests, length)) < 0.6).astype(np.float32),
        "ads": rng.normal(size=(requests, width, 8)).astype(np.float32),
    }


def exported(module):
    torch.manual_seed(3)
    requests, width, length = (torch.export.Dim(name, min=1) for name in ("requests", "width", "length"))
    shapes = ({0: requests}, {0: requests, 1: length}, {0: requests, 1: length}, {0: requests, 1: width})
    args = tuple(torch.from_numpy(array) for array in arrays().values())
    with torch.no_grad():
        return torch.export.export(module.eval(), args, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(4)
    return Blocks().eval()


@pytest.fixture(scope="module")
def program(module):
    return exported(module)


@pytest.fixture(scope="module")
def path(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "blocks.safetensors"
    write_program(program, path, input_names=INPUTS, output_names=OUTPUTS, dynamic=DYNAMIC)
    return path


@pytest.mark.parametrize(("requests", "width", "length"), [(3, 5, 7), (1, 1, 1), (2, 9, 4)])
def test_equals_the_module(module, path, requests, width, length):
    inputs = [torch.from_numpy(array) for array in arrays(requests, width, length, seed=width).values()]
    program = read_program(path, device="cpu")
    with torch.no_grad():
        for computed, wanted in zip(program(*inputs), module(*inputs), strict=True):
            torch.testing.assert_close(computed, wanted, rtol=1e-6, atol=1e-6)
    assert [spec.name for spec in program.inputs] == list(INPUTS)
    assert [spec.axes for spec in program.inputs] == list(DYNAMIC.values())
    assert [spec.shape[0] for spec in program.outputs][::2] == ["requests", "requests"]
    assert program.outputs[0].shape == ["requests", "ads", 2]


def test_the_file_holds_no_pickle_and_is_the_same_twice(module, path, tmp_path):
    content = path.read_bytes()
    assert not any(mark in content for mark in (b"\x80\x02", b"PK\x03\x04"))
    again = tmp_path / "again.safetensors"
    write_program(exported(module), again, input_names=INPUTS, output_names=OUTPUTS, dynamic=DYNAMIC)
    assert again.read_bytes() == content


def altered(path, target, change):
    """A copy of a program with its graph changed."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    graph = json.loads(header["__metadata__"][HEADER])
    change(graph)
    header["__metadata__"][HEADER] = json.dumps(graph)
    text = json.dumps(header).encode()
    target.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    return target


@pytest.mark.parametrize(
    "operator",
    ["os.system", "size.exec", "aten.from_file.default", "aten.add_.Tensor", "aten.linear", "aten.absent.default"],
)
def test_only_aten_operators_are_called(path, tmp_path, operator):
    def change(graph):
        graph["calls"][0]["op"] = operator

    with pytest.raises(ArtifactError, match=rf"not a program: '{operator}' is no ATen operator"):
        read_program(altered(path, tmp_path / "altered.safetensors", change), device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.update(format=2), "program format 2, this version reads 1"),
        (lambda graph: graph.update(results=[0, 1, 999]), "name values that no call computes"),
        (lambda graph: graph["calls"][0].update(args=[{"value": 500}]), "reads a value that comes later"),
        (lambda graph: graph["calls"][0].update(args=[{"value": -1}]), "unknown argument"),
        (lambda graph: graph["calls"][0].update(args=[{"dtype": "load"}]), "torch has no dtype 'load'"),
        (lambda graph: graph.update(surprise=1), "unknown field"),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(path, tmp_path, change, message):
    with pytest.raises(ArtifactError, match=message):
        read_program(altered(path, tmp_path / "altered.safetensors", change), device="cpu")


def test_what_is_no_program_is_refused(path, tmp_path):
    truncated, other = tmp_path / "truncated.safetensors", tmp_path / "other.safetensors"
    truncated.write_bytes(path.read_bytes()[:-9])
    other.write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(ArtifactError, match=r"truncated\.safetensors: not a program"):
        read_program(truncated, device="cpu")
    with pytest.raises(ArtifactError, match="holds no program"):
        read_program(other, device="cpu")
    with pytest.raises(ArtifactError, match="no such file"):
        read_program(tmp_path / "absent", device="cpu")


def test_names_must_fit_the_program(program, tmp_path):
    with pytest.raises(ArtifactError, match="the program has 4 inputs and 3 outputs"):
        write_program(program, tmp_path / "x", input_names=("a",), output_names=OUTPUTS, dynamic={})
    assert not (tmp_path / "x").exists()
