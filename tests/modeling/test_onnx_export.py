"""Exported graphs against their modules, through ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from modeling.mlp import mlp
from modeling.onnx_export import OPSET, export


class Attention(nn.Module):
    """Pools a masked sequence for each row of another input, as the rankers do."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.head = nn.Linear(6, 8), nn.Linear(5, 8), mlp(5, (16,), out_dim=3, dropout=0.5)

    def forward(self, flat: Tensor, embeddings: Tensor, mask: Tensor, request_index: Tensor) -> tuple[Tensor, Tensor]:
        keys, values, masks = self.key(embeddings)[request_index], embeddings[request_index], mask[request_index]
        logits = torch.einsum("nd,nld->nl", self.query(flat), keys) + (masks - 1) * 1e4
        pooled = torch.einsum("nl,nle->ne", logits.softmax(-1), values)
        return self.head(pooled), pooled


DYNAMIC = {
    "flat": {0: "pairs"},
    "watch.embeddings": {0: "requests"},
    "watch.mask": {0: "requests"},
    "request_index": {0: "pairs"},
}


def inputs(requests: int, pairs: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "flat": torch.randn(pairs, 6, generator=generator),
        "watch.embeddings": torch.randn(requests, 7, 5, generator=generator),
        "watch.mask": (torch.rand(requests, 7, generator=generator) < 0.6).float(),
        "request_index": torch.randint(requests, (pairs,), generator=generator),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(3)
    module, path = Attention().train(), tmp_path_factory.mktemp("onnx") / "attention.onnx"
    export(module, inputs(2, 4), path, dynamic=DYNAMIC, output_names=["logits", "pooled"])
    return module, path


@pytest.mark.parametrize(("requests", "pairs"), [(1, 1), (1, 3), (3, 3), (2, 17), (17, 17)])
def test_graph_equals_module_at_any_size(exported: tuple[nn.Module, Path], requests: int, pairs: int) -> None:
    module, path = exported
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = inputs(requests, pairs, seed=pairs)
    found = session.run(["logits", "pooled"], {name: tensor.numpy() for name, tensor in given.items()})
    with torch.no_grad():
        expected = module.eval()(*given.values())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), atol=1e-5)


def test_one_file_with_the_given_names_and_opset(exported: tuple[nn.Module, Path]) -> None:
    _, path = exported
    model = onnx.load(str(path), load_external_data=False)
    assert [value.name for value in model.graph.input] == list(DYNAMIC)
    assert [value.name for value in model.graph.output] == ["logits", "pooled"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "pairs"
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == OPSET
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_export_says_nothing_and_leaves_the_module_in_its_mode(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = mlp(3, (4,), out_dim=1, dropout=0.5).train()
    export(module, {"flat": torch.ones(2, 3)}, tmp_path / "a.onnx", dynamic={"flat": {0: "rows"}}, output_names=["out"])
    assert module.training
    assert capfd.readouterr() == ("", "")


def test_sizes_that_the_exporter_would_freeze_are_refused(tmp_path: Path) -> None:
    module, path = mlp(3, (), out_dim=1), tmp_path / "a.onnx"
    with pytest.raises(ValueError, match=r"flat: dimension 0 \(rows\) varies and must be 2 or more here, got \(1, 3\)"):
        export(module, {"flat": torch.ones(1, 3)}, path, dynamic={"flat": {0: "rows"}}, output_names=["out"])
    with pytest.raises(ValueError, match="dynamic names input 'other', expected one of flat"):
        export(module, {"flat": torch.ones(2, 3)}, path, dynamic={"other": {0: "rows"}}, output_names=["out"])
