"""A student that is no two-tower: it sees both sides of a pair together, so it shows what a dot product leaves.

    logit_h = <query_h, pin_h> + f_h([query flat, pin flat, query * pin])

with towers as of the student beside it and f an MLP over everything that both sides know of a pair. No index could
serve it.

Shapes: N pairs, R requests, A ads, H heads, E width of an embedding.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from contracts.schema import FeatureSchema
from distill.batches import DayBatches
from distill.config import DistillConfig
from distill.objective import objective
from distill.run import build_student
from modeling.batches import Batch, ordered_batches
from modeling.examples import Examples
from modeling.loop import mean_loss, train
from modeling.mlp import mlp
from towers.two_tower import TwoTower

HIDDEN_DIMS = (256, 128)


class PairReference(nn.Module):
    """A two-tower and an MLP over both sides of a pair.

    Args:
        towers: The two-tower, trained along.
        num_heads: H.
        embedding_dim: E.
    """

    def __init__(self, towers: TwoTower, *, num_heads: int, embedding_dim: int) -> None:
        super().__init__()
        self.towers = towers
        flat = sum(towers.tables.flat_dim(side) for side in ("query", "ad"))
        self.pair = mlp(flat + num_heads * embedding_dim, HIDDEN_DIMS, out_dim=num_heads)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [N, H]."""
        flats = self.towers.look_up(batch.query, batch.ad)
        query, pin = self.towers.embed_flat(*flats)
        products = query[batch.request_index] * pin[batch.ad_index]  # [N, H, E]
        sides = flats[0][batch.request_index], flats[1][batch.ad_index]
        together = torch.cat([*(side.float() for side in sides), products.flatten(1)], dim=1)
        return products.sum(-1) + self.pair(together).float()


def train_reference(
    schema: FeatureSchema, training: Examples, validation: Examples | None, config: DistillConfig, out: Path
) -> PairReference:
    """Train by the student's own configuration on its own pairs.

    Args:
        schema: As of the student.
        training: Weighted as for the student.
        validation: Decides when to stop.
        config: Of the student.
        out: Takes checkpoints.
    """
    torch.manual_seed(config.seed)
    model = PairReference(
        build_student(schema, config), num_heads=len(schema.tasks), embedding_dim=config.towers.head_dim + 2
    )
    model.towers.query_tower.heads.set_prior(torch.from_numpy(training.teacher.mean(0)))
    wanted = objective(schema, config)

    def validate() -> float:
        batches = ordered_batches(validation, pairs_per_batch=config.pairs_per_batch) if validation else iter(())
        return mean_loss(lambda batch: wanted.divergence(model(batch), batch), batches)

    train(
        model,
        DayBatches(training, pairs_per_batch=config.pairs_per_batch, seed=config.seed),
        lambda batch: wanted.loss(model(batch), batch),
        config=config.loop,
        run_directory=out,
        validate=validate if validation else None,
        title="Training the reference",
        batch_size=config.pairs_per_batch,
    )
    return model.eval()
