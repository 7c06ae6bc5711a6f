"""A student trained the plain PyTorch way: what benchmarks/distill_training.py compares with.

The same towers on the same pairs, and around them what a tutorial would do: a Dataset of pairs and the default collate;
one ``nn.EmbeddingBag`` a feature, features of one table sharing its weights; a pair with all that belongs to it, so
that both towers are computed for every pair; fp32, eager, and one AdamW for everything. Ids are encoded beforehand and
whole arrays lie in memory, which is the faster habit.

Shapes: B pairs, H heads.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.plain_tables import PlainTables
from contracts.schema import FeatureSchema
from modeling.examples import Examples
from towers.build import build_tower
from towers.config import TwoTowerConfig


class Pair(NamedTuple):
    """A request, an ad, and the teacher's logits; collated, each field has a first axis of B."""

    query_ids: Tensor
    query_floats: Tensor
    ad_ids: Tensor
    ad_floats: Tensor
    teacher: Tensor


class Pairs(Dataset[Pair]):
    """One pair after another."""

    def __init__(self, examples: Examples) -> None:
        self._query = torch.tensor(examples.query.ids), torch.tensor(examples.query.floats)
        self._ad = torch.tensor(examples.ad.ids), torch.tensor(examples.ad.floats)
        self._teacher = torch.tensor(np.asarray(examples.teacher))
        self._requests, self._ads = examples.request_row.tolist(), examples.ad_row.tolist()

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, row: int) -> Pair:
        request, ad = self._requests[row], self._ads[row]
        ids, floats = self._query
        ad_ids, ad_floats = self._ad
        return Pair(ids[request], floats[request], ad_ids[ad], ad_floats[ad], self._teacher[row])


def pair_loader(examples: Examples, batch_size: int) -> "DataLoader[Pair]":
    """Shuffled batches by the default collate, in the training process: two cores have none to spare for workers."""
    generator = torch.Generator().manual_seed(0)
    return DataLoader(Pairs(examples), batch_size=batch_size, shuffle=True, drop_last=True, generator=generator)


class PlainStudent(nn.Module):
    """Embeddings of every feature and both towers, a request and an ad a row."""

    def __init__(self, schema: FeatureSchema, config: TwoTowerConfig, prior: Tensor) -> None:
        super().__init__()
        self.tables = PlainTables(schema, ("query", "ad"), pool_sequences=True)
        heads, dims = len(schema.tasks), {s: layout.flat_dim(True) for s, layout in self.tables.layouts.items()}
        self.query_tower = build_tower(config.query, dims["query"], heads, config.head_dim, "query")
        self.pin_tower = build_tower(config.pin, dims["ad"], heads, config.head_dim, "ad")
        self.query_tower.heads.set_prior(prior)

    def forward(self, batch: Pair) -> Tensor:
        """Per-impression logits ``[B, H]``."""
        query = self.query_tower(self.tables.flat("query", batch.query_ids, batch.query_floats))
        return (query * self.pin_tower(self.tables.flat("ad", batch.ad_ids, batch.ad_floats))).sum(-1)


class PlainDistilling:
    """The usual four lines a step."""

    def __init__(self, schema: FeatureSchema, config: TwoTowerConfig, prior: Tensor, learning_rate: float) -> None:
        self.model = PlainStudent(schema, config, prior)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)

    def step(self, batch: Pair) -> None:
        target = torch.sigmoid(batch.teacher)
        loss = functional.binary_cross_entropy_with_logits(self.model(batch), target, reduction="none").mean(0).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
