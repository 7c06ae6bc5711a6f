"""Eager PyTorch as an average team serves it: one ``nn.Embedding`` or ``nn.EmbeddingBag`` a feature, then the module.

The light stage from an encoded request to probabilities, the heavy one from survivors to probabilities with the user's
row repeated for each ad (``benchmarks.naive_serving``). Weights are those of the sealed bundles.

Shapes: C candidates, H heads, D width of a head's vector, N survivors.
"""

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.naive_serving import NaiveServing
from contracts.bundle import Bundle
from contracts.encoding import Encoded
from contracts.layout import IdColumn, SideLayout, side_layout
from contracts.probability import sigmoid
from contracts.schema import Side
from heavy_ranker.build import build_ranker
from heavy_ranker.presets import iqiyi
from modeling.weights import load_weights
from towers.build import build_two_tower
from towers.presets import standard

RANKER = "ranker."
SIDES: tuple[Side, ...] = ("query", "ad", "pair")


class NaiveQueryTower(nn.Module):
    """The query tower with its look-ups, one module a feature."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        source = bundle.file("weights.safetensors")
        model = build_two_tower(bundle.schema, standard())
        load_weights(model, load_file(source), source=source)
        self.layout: SideLayout = side_layout(bundle.schema, "query")
        self.columns = [*self.layout.bags, *(field for one in self.layout.sequences for field in one.fields)]
        self.lookups = nn.ModuleList(_lookup(column, model.tables.weight(column.table)) for column in self.columns)
        self.tower = model.query_tower.eval()

    def forward(self, ids: Tensor, floats: Tensor) -> Tensor:
        """Query embeddings [B, H, D+2] of ids [B, num_ids] and floats [B, num_floats]."""
        parts = [
            lookup(ids[:, column.start : column.start + column.width]).flatten(1)
            for column, lookup in zip(self.columns, self.lookups, strict=True)
        ]
        return self.tower(torch.cat([floats, *parts], dim=1))


def _lookup(column: IdColumn, weight: Tensor) -> nn.Module:
    if column.width == 1:
        return nn.Embedding.from_pretrained(weight)
    return nn.EmbeddingBag.from_pretrained(weight, mode=column.pooling, padding_idx=0)


def embed(tower: NaiveQueryTower, ids: np.ndarray, floats: np.ndarray) -> Tensor:
    """The query embedding [H, D+2] of one encoded request."""
    with torch.inference_mode():
        return tower(torch.from_numpy(ids)[None], torch.from_numpy(floats)[None])[0]


def light_probabilities(embedding: Tensor, vectors: Tensor, bias: Tensor) -> Tensor:
    """[C, H] of a query embedding [H, D+2] with vectors [C, H * D] and biases [C, H]."""
    dim = embedding.shape[1] - 2
    by_head = vectors.view(len(vectors), len(embedding), dim)
    logits = (by_head * embedding[None, :, :dim]).sum(-1) + bias * embedding[:, dim] + embedding[:, dim + 1]
    return torch.sigmoid(logits)


def naive_heavy(bundle: Bundle) -> NaiveServing:
    """The heavy ranker of a bundle, called with complete rows."""
    tensors = load_file(bundle.file("weights.safetensors"))
    ranker = build_ranker(bundle.schema, iqiyi().model).eval()
    ranker.load_state_dict(
        {name.removeprefix(RANKER): value for name, value in tensors.items() if name.startswith(RANKER)}
    )
    tables = {name: value.numpy() for name, value in tensors.items() if name.startswith("tables.")}
    return NaiveServing(ranker, {side: side_layout(bundle.schema, side) for side in SIDES}, tables)


def heavy_probabilities(heavy: NaiveServing, query: Encoded, ads: Encoded, pair_floats: int) -> np.ndarray:
    """[N, H] of one encoded request with encoded ads; pair features have their default, whose logarithm is 0."""
    count = len(ads)
    pair = Encoded(np.zeros((count, 0), np.int32), np.zeros((count, pair_floats), np.float32))
    return sigmoid(heavy(query, ads, pair))
