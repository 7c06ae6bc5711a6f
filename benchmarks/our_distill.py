"""A step of ``adsieve distill train``, as modeling/loop.py does it, in parts that can be timed one by one."""

import time
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor, nn

from benchmarks.our_training import Parts
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.objective import objective
from distill.run import build_student
from distill.train import Towers, forward
from modeling.batches import Batch
from modeling.compile import compiled, step_flops
from modeling.dense_optimizer import dense_optimizer
from modeling.precision import autocast
from modeling.tables import dense_parameters
from towers.embedding import pair_logits


class OurDistilling:
    """A student and its optimisers.

    Args:
        schema: A fitted schema.
        config: Of the run.
        prior: What the heads start at [H].
        precision: Of the towers.
        compile: Compile the towers.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        config: DistillConfig,
        prior: Tensor,
        *,
        precision: Literal["fp32", "bf16"],
        compile: bool,
    ) -> None:
        self.model = build_student(schema, config)
        self.model.query_tower.heads.set_prior(prior)
        self._parameters = list(dense_parameters(self.model).values())
        self._optimizer = dense_optimizer(self._parameters, config.loop)
        self._loop, self._precision = config.loop, precision
        self._towers: Towers = compiled(self.model.embed_flat) if compile else self.model.embed_flat
        self._objective = objective(schema, config)

    def step(self, batch: Batch) -> None:
        with self._autocast():
            loss = self._objective.loss(forward(self.model, batch, towers=self._towers), batch)
        loss.backward()
        self._update()

    def timed_step(self, batch: Batch) -> Parts:
        """The same step, with the graph cut between tables and towers, so that each part can be timed."""
        start = time.perf_counter()
        with self._autocast():
            found = self.model.look_up(batch.query, batch.ad)
        query, ad = (flat.detach().requires_grad_() for flat in found)
        looked_up = time.perf_counter()
        with self._autocast():
            logits = pair_logits(*self._towers(query, ad, None), batch.request_index, batch.ad_index)
            loss = self._objective.loss(logits, batch)
        loss.backward()
        dense = time.perf_counter()
        torch.autograd.backward(found, [query.grad, ad.grad])
        tables = time.perf_counter()
        self._update()
        return Parts(looked_up - start, dense - looked_up, tables - dense, time.perf_counter() - tables)

    def flops(self, batch: Batch) -> float:
        """Of towers and pairs, forward and backward."""
        return step_flops(lambda: forward(self.model, batch))

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self._precision, "cpu")

    def _update(self) -> None:
        if self._loop.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._loop.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
