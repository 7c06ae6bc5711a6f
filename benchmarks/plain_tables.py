"""Embeddings of every feature the plain PyTorch way: one ``nn.EmbeddingBag`` or ``nn.Embedding`` a feature.

Features of one table share its weights. Shapes: B rows, F flat features, L sequence length, E width of one event.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contracts.layout import IdColumn, SideLayout, side_layout
from contracts.schema import FeatureSchema, Side


class PlainTables(nn.Module):
    """What ``modeling.tables.FeatureTables`` gives, one module a feature.

    Args:
        schema: A fitted schema.
        sides: Sides that the model reads.
        pool_sequences: Mean-pool each field of a sequence into the flat input, instead of keeping its events.
    """

    def __init__(self, schema: FeatureSchema, sides: Sequence[Side], *, pool_sequences: bool) -> None:
        super().__init__()
        self.layouts: dict[str, SideLayout] = {side: side_layout(schema, side) for side in sides}
        self.weights = nn.ParameterDict()
        self.bags, self.fields = nn.ModuleDict(), nn.ModuleDict()
        self._pooled: dict[str, list[tuple[str, IdColumn]]] = {}
        rows = {name: table.num_rows for name, table in schema.all_tables().items()}
        for side, layout in self.layouts.items():
            pooled = [(bag.name, bag) for bag in layout.bags]
            fields = [(f"{s.name}-{field.name}", field) for s in layout.sequences for field in s.fields]
            self._pooled[side] = pooled + (fields if pool_sequences else [])
            for name, column in self._pooled[side]:
                bag = nn.EmbeddingBag(rows[column.table], column.dim, mode="mean", padding_idx=0)
                self.bags[f"{side}-{name}"] = self._tied(bag, column.table)
            for name, column in [] if pool_sequences else fields:
                single = nn.Embedding(rows[column.table], column.dim, padding_idx=0)
                self.fields[name] = self._tied(single, column.table)

    def _tied(self, module: nn.Module, table: str) -> nn.Module:
        """Let the module use the table's weights, made with unit scale when first asked for."""
        name = table.replace(".", "-")
        if name not in self.weights:
            dim = module.weight.shape[1]
            weight = torch.empty(module.weight.shape).uniform_(-(dim**-0.5), dim**-0.5)
            weight[0] = 0.0
            self.weights[name] = nn.Parameter(weight)
        module.weight = self.weights[name]
        return module

    def flat(self, side: str, ids: Tensor, floats: Tensor) -> Tensor:
        """``[B, F]``."""
        bags = (
            self.bags[f"{side}-{name}"](ids[:, column.start : column.start + column.width])
            for name, column in self._pooled[side]
        )
        return torch.cat([floats, *bags], dim=1)

    def sequences(self, ids: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Events ``[B, L, E]`` and mask ``[B, L]`` of each sequence."""
        found = {}
        for sequence in self.layouts["query"].sequences:
            fields = [
                self.fields[f"{sequence.name}-{field.name}"](ids[:, field.start : field.start + field.width])
                for field in sequence.fields
            ]
            first = sequence.fields[0].start
            mask = ids[:, first : first + sequence.max_length] != 0
            found[sequence.name] = torch.cat(fields, dim=2), mask.float()
        return found
