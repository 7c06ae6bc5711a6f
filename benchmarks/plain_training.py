"""A heavy ranker trained the plain PyTorch way: what benchmarks/heavy_training.py compares with.

The same dense layers on the same rows, and around them what a tutorial would do: a Dataset of examples and the default
collate; one ``nn.EmbeddingBag`` a feature and one ``nn.Embedding`` a sequence field, features of one table sharing its
weights; an example with all that belongs to it, so that a request's side is computed for each of its ads; fp32, eager,
and one AdamW for everything. Ids are encoded beforehand and whole arrays lie in memory, which is the faster habit.

Shapes: B examples, K tasks.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.plain_tables import PlainTables
from contracts.schema import FeatureSchema
from heavy_ranker.build import build_ranker, model_sides
from heavy_ranker.config import ModelConfig
from heavy_ranker.loss import impression_loss
from heavy_ranker.rows import EvenRows
from modeling.examples import Examples


class Example(NamedTuple):
    """One shown ad and all that is known of it; collated, each field has a first axis of B."""

    query_ids: Tensor
    query_floats: Tensor
    ad_ids: Tensor
    ad_floats: Tensor
    pair_ids: Tensor
    pair_floats: Tensor
    labels: Tensor
    weight: Tensor


class Impressions(Dataset[Example]):
    """One example after another."""

    def __init__(self, examples: Examples) -> None:
        pair = examples.pair
        if pair is None:
            raise ValueError("the plain model expects pair features, got a log without them")
        sides = {"query": examples.query, "ad": examples.ad, "pair": pair}
        self._ids = {side: torch.tensor(encoded.ids) for side, encoded in sides.items()}
        self._floats = {side: torch.tensor(encoded.floats) for side, encoded in sides.items()}
        self._labels, self._weight = torch.tensor(examples.labels), torch.tensor(examples.weight)
        self._requests, self._ads = examples.request_row.tolist(), examples.ad_row.tolist()

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, row: int) -> Example:
        request, ad = self._requests[row], self._ads[row]
        return Example(
            self._ids["query"][request],
            self._floats["query"][request],
            self._ids["ad"][ad],
            self._floats["ad"][ad],
            self._ids["pair"][row],
            self._floats["pair"][row],
            self._labels[row],
            self._weight[row],
        )


def plain_loader(examples: Examples, batch_size: int, seed: int) -> "DataLoader[Example]":
    """Shuffled batches by the default collate, in the training process: two cores have none to spare for workers."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(Impressions(examples), batch_size=batch_size, shuffle=True, drop_last=True, generator=generator)


class PlainModel(nn.Module):
    """Embeddings of every feature and the ranker's dense layers, one request a row."""

    def __init__(self, schema: FeatureSchema, config: ModelConfig) -> None:
        super().__init__()
        self.tables = PlainTables(schema, model_sides(schema), pool_sequences=False)
        self.ranker = build_ranker(schema, config)

    def forward(self, batch: Example) -> Tensor:
        """Per-impression logits ``[B, K]``."""
        query = self.tables.flat("query", batch.query_ids, batch.query_floats)
        state = self.ranker.encode_request(query, self.tables.sequences(batch.query_ids))
        ad = self.tables.flat("ad", batch.ad_ids, batch.ad_floats)
        pair = self.tables.flat("pair", batch.pair_ids, batch.pair_floats)
        return self.ranker.score_ads(state, EvenRows(num_requests=len(query), width=1), ad, pair)


class PlainTraining:
    """The usual four lines a step."""

    def __init__(self, schema: FeatureSchema, config: ModelConfig, learning_rate: float) -> None:
        self.model = PlainModel(schema, config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)

    def step(self, batch: Example) -> None:
        loss = impression_loss(self.model(batch), batch.labels, batch.weight)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
