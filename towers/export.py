"""Writes what a two-tower bundle serves from: weights, a graph and a program a tower, and the rows that check them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from contracts.bundle import GRAPHS, PARITY_FILE, WEIGHTS_FILE
from contracts.encoding import Encoded
from engines.names import program_path
from engines.torch_program_writer import write_program
from modeling.onnx_export import export
from modeling.weights import model_weights
from towers.two_tower import TwoTower


@dataclass(frozen=True)
class ParityRows:
    """Real encoded rows of both sides; at least two of each, so that no export takes a batch of one for a constant."""

    query: Encoded
    ads: Encoded


@torch.no_grad()
def export_two_tower(model: TwoTower, directory: Path, rows: ParityRows) -> None:
    """Write ``weights.safetensors``, both graphs and programs, and ``parity.safetensors`` into ``directory``.

    The graphs take the flat input, after look-up and pooling, and give embeddings with bias and scale folded in.

    Args:
        model: Trained; exported in evaluation mode.
        directory: Takes the files.
        rows: What the parity file holds, with the module's own fp32 outputs.
    """
    model.eval()
    query, ads = _tensors(rows.query), _tensors(rows.ads)
    inputs = model.tables.forward_sides({"query": query, "ad": ads})
    for tower, name, side in zip(
        (model.query_tower, model.pin_tower), GRAPHS["two_tower"], ("query", "ad"), strict=True
    ):
        write_tower(tower, inputs[side].flat, directory / name)
    _save(model_weights(model), directory / WEIGHTS_FILE)
    _save(_parity(model, query, ads), directory / PARITY_FILE)


def write_tower(tower: nn.Module, flat: Tensor, path: Path) -> None:
    """Write one tower as an ONNX graph, and beside it its twin for engines that run torch programs.

    Args:
        tower: In evaluation mode, takes the flat input and gives embeddings.
        flat: Rows of the flat input, at least two.
        path: Of the graph.
    """
    inputs, dynamic = {"flat": flat}, {"flat": {0: "rows"}}
    program = export(tower, inputs, path, dynamic=dynamic, output_names=["embedding"])
    write_program(program, program_path(path), input_names=["flat"], output_names=["embedding"], dynamic=dynamic)


def _parity(model: TwoTower, query: tuple[Tensor, Tensor], ads: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    query_embedding, pin_embedding = model.embed(query, ads)
    return {
        "in.query_ids": query[0],
        "in.query_floats": query[1],
        "in.ad_ids": ads[0],
        "in.ad_floats": ads[1],
        "out.query_embedding": query_embedding,
        "out.pin_embedding": pin_embedding,
    }


def _tensors(rows: Encoded) -> tuple[Tensor, Tensor]:
    # copies: rows may be memory-mapped read-only, which torch cannot mark
    return torch.tensor(rows.ids), torch.tensor(rows.floats)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)
