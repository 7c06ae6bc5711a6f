"""A step of ``adsieve heavy train``, as modeling/loop.py does it, in parts that can be timed one by one."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from contracts.schema import FeatureSchema
from heavy_ranker.config import HeavyConfig
from heavy_ranker.loss import impression_loss
from heavy_ranker.model import Interact, LookedUp
from heavy_ranker.rows import IndexedRows
from heavy_ranker.run import build_model
from heavy_ranker.train import batch_loss
from modeling.batches import Batch
from modeling.compile import compiled
from modeling.dense_optimizer import dense_optimizer
from modeling.precision import autocast
from modeling.tables import dense_parameters


class Parts(NamedTuple):
    """Seconds of one step."""

    look_up: float
    dense: float
    table_update: float
    optimizer: float


class OurTraining:
    """A model and its optimisers.

    Args:
        schema: A fitted schema.
        config: Of the run; its precision is ``fp32`` or ``bf16``.
        compile: Compile the dense layers.
    """

    def __init__(self, schema: FeatureSchema, config: HeavyConfig, *, compile: bool) -> None:
        self.model = build_model(schema, config)
        self._parameters = list(dense_parameters(self.model).values())
        self._optimizer = dense_optimizer(self._parameters, config.loop)
        self._loop = config.loop
        self._interact: Interact = compiled(self.model.interact) if compile else self.model.interact
        self._loss = batch_loss(self.model, interact=self._interact)

    def step(self, batch: Batch) -> None:
        with self._autocast():
            loss = self._loss(batch)
        loss.backward()
        self._update()

    def timed_step(self, batch: Batch) -> Parts:
        """The same step, with the graph cut between tables and dense layers, so that each part can be timed."""
        start = time.perf_counter()
        with self._autocast():
            found = self.model.look_up(batch.sides())
        inputs, cut = _cut(found)
        looked_up = time.perf_counter()
        with self._autocast():
            rows = IndexedRows(batch.request_index, len(batch.query.ids))
            loss = impression_loss(self._interact(inputs, rows, batch.ad_index), batch.labels, batch.weight)
        loss.backward()
        dense = time.perf_counter()
        torch.autograd.backward([before for before, _ in cut], [after.grad for _, after in cut])
        tables = time.perf_counter()
        self._update()
        return Parts(looked_up - start, dense - looked_up, tables - dense, time.perf_counter() - tables)

    @torch.no_grad()
    def flops(self, batch: Batch) -> float:
        """Of the dense layers, forward and backward: two products backward for each one forward."""
        rows = IndexedRows(batch.request_index, len(batch.query.ids))
        with FlopCounterMode(display=False) as counter:
            self.model.interact(self.model.look_up(batch.sides()), rows, batch.ad_index)
        return 3.0 * counter.get_total_flops()

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast("bf16" if self._loop.precision == "bf16" else "fp32", "cpu")

    def _update(self) -> None:
        if self._loop.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._loop.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def _cut(found: LookedUp) -> tuple[LookedUp, list[tuple[Tensor, Tensor]]]:
    """Inputs whose graph begins anew, and each looked-up tensor beside its stand-in."""
    cut: list[tuple[Tensor, Tensor]] = []

    def detached(x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        cut.append((x, x.detach().requires_grad_()))
        return cut[-1][1]

    inputs = LookedUp(
        query=detached(found.query),
        sequences={name: (detached(events), mask) for name, (events, mask) in found.sequences.items()},
        ad=detached(found.ad),
        pair=None if found.pair is None else detached(found.pair),
    )
    return inputs, cut


MATRIX = 1024
"""Side of the square product that stands for the matrix rate of a machine."""


def matrix_rate(dtype: torch.dtype) -> float:
    """FLOP/s of a square matrix product that fits the caches, the best of three."""
    a, b = (torch.ones(MATRIX, MATRIX, dtype=dtype) for _ in range(2))
    a @ b
    return 2 * MATRIX**3 / min(seconds(lambda: a @ b) for _ in range(3))


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
