"""Serving as one would write it first: a batch of complete rows, each with its user and its ad, through the module.

Shapes: B rows, L events, E width of an event.
"""

import numpy as np
import torch
from torch import Tensor, nn

from contracts.encoding import Encoded
from contracts.layout import IdColumn, SideLayout
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.rows import EvenRows


class NaiveLookup(nn.Module):
    """One ``nn.Embedding`` for each categorical feature and sequence field, one mean ``nn.EmbeddingBag`` for each bag.

    Features of one table share its weight, as they do in training. Row 0, padding, is zero.

    Args:
        layout: Of one side.
        tables: ``tables.<name>`` float32 [rows, dim], row 0 zero.
    """

    def __init__(self, layout: SideLayout, tables: dict[str, Tensor]) -> None:
        super().__init__()
        self.layout = layout
        self.bags = nn.ModuleList(_module(column, tables) for column in layout.bags)
        fields = [field for sequence in layout.sequences for field in sequence.fields]
        self.fields = nn.ModuleList(nn.Embedding.from_pretrained(tables[f"tables.{field.table}"]) for field in fields)

    def forward(self, ids: Tensor, floats: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Flat features [B, F], and events [B, L, E] with mask [B, L] of each sequence."""
        bags = [
            module(ids[:, column.start : column.start + column.width]).flatten(1)
            for column, module in zip(self.layout.bags, self.bags, strict=True)
        ]
        fields = iter(self.fields)
        sequences = {}
        for sequence in self.layout.sequences:
            columns = [ids[:, field.start : field.start + field.width] for field in sequence.fields]
            events = torch.cat([next(fields)(column) for column in columns], dim=2)
            sequences[sequence.name] = events, (columns[0] != 0).float()
        return torch.cat([floats, *bags], dim=1), sequences


def _module(column: IdColumn, tables: dict[str, Tensor]) -> nn.Module:
    weight = tables[f"tables.{column.table}"]
    if column.width == 1:
        return nn.Embedding.from_pretrained(weight)
    return nn.EmbeddingBag.from_pretrained(weight, mode="mean", padding_idx=0)


class NaiveServing:
    """Eager fp32 torch: the user's ids are repeated for each ad, and every row is a request of its own."""

    def __init__(self, ranker: HeavyRanker, layouts: dict[str, SideLayout], tables: dict[str, np.ndarray]) -> None:
        weights = {name: torch.from_numpy(values) for name, values in tables.items()}
        self._ranker = ranker
        self._lookups = {side: NaiveLookup(layout, weights) for side, layout in layouts.items()}

    def __call__(self, query: Encoded, ads: Encoded, pair: Encoded) -> np.ndarray:
        """Logits [B, K] of one request's B ads."""
        with torch.inference_mode():
            flat, sequences = self._look_up("query", Encoded(*_repeated(query, len(ads))))
            ad_flat, pair_flat = (self._look_up(side, given)[0] for side, given in (("ad", ads), ("pair", pair)))
            state = self._ranker.encode_request(flat, sequences)
            return self._ranker.score_ads(state, EvenRows(len(ads), 1), ad_flat, pair_flat).numpy()

    def _look_up(self, side: str, encoded: Encoded) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        return self._lookups[side](torch.from_numpy(encoded.ids), torch.from_numpy(encoded.floats))


def _repeated(encoded: Encoded, count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(encoded.ids, count, axis=0), np.repeat(encoded.floats, count, axis=0)
