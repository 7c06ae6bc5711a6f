"""Tables of a bundle in int8, behind a gate: what rounding them does to the model's probabilities on real rows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.errors import ArtifactError
from contracts.metrics import auc
from engines.int8_tables import SCALE_SUFFIX, dequantise_table, quantise_table
from engines.lookup import TABLE_PREFIX
from engines.parity import BF16_GATE, measure_parity
from heavy_ranker.model import HeavyModel
from modeling.batches import Batch

GATE = BF16_GATE
"""The same for a table's rounding as for an engine's."""


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """What int8 tables cost and save; kept among a bundle's metrics.

    ``error`` is the largest of a probability and ``rank_correlation`` the smallest of a task, both against fp32 tables;
    ``auc`` by task, before and after, NaN for a task with labels of one class.
    """

    error: float
    rank_correlation: float
    rows: int
    bytes: int
    bytes_fp32: int
    auc: dict[str, tuple[float, float]]

    def to_metrics(self) -> dict[str, Any]:
        return {"tables_int8": asdict(self)}


def quantise_tables(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``weights`` with each ``tables.<name>`` as int8 beside its scales; all else as it was."""
    stored = dict(weights)
    for name in [name for name in weights if name.startswith(TABLE_PREFIX)]:
        values, scales = quantise_table(weights[name].numpy())
        stored |= {name: torch.from_numpy(values), f"{name}{SCALE_SUFFIX}": torch.from_numpy(scales)}
    return stored


def use_int8_tables(
    model: HeavyModel, weights: Mapping[str, Tensor], batch: Batch, tasks: tuple[str, ...]
) -> TableReport:
    """Give the model the tables that int8 ``weights`` stand for, and tell what that changed.

    Args:
        model: With its own tables; afterwards with rounded ones, if they pass.
        weights: What :func:`quantise_tables` gave for them.
        batch: Real rows with labels.
        tasks: Of the model, in order.

    Raises:
        ArtifactError: Probabilities or their order change by more than ``GATE`` allows; the model is as it was.
    """
    before, kept = _probabilities(model, batch), model.tables.export_tables()
    tables = {name: values.numpy() for name, values in weights.items() if name.startswith(TABLE_PREFIX)}
    names = [name for name in tables if not name.endswith(SCALE_SUFFIX)]
    model.tables.import_tables(
        {name: dequantise_table(tables[name], tables[f"{name}{SCALE_SUFFIX}"]) for name in names}
    )
    after = _probabilities(model, batch)
    parity = measure_parity(lambda _: {"probabilities": after}, {"out.probabilities": before}, source="int8 tables")
    if refusal := GATE.refusal(parity):
        model.tables.import_tables(kept)
        raise ArtifactError(f"int8 tables: {refusal}; export with tables in fp32")
    return TableReport(
        error=parity.errors["probabilities"],
        rank_correlation=parity.rank_correlations["probabilities"],
        rows=len(batch),
        bytes=sum(values.nbytes for values in tables.values()),
        bytes_fp32=sum(values.nbytes for values in kept.values()),
        auc={task: _aucs(batch.labels.numpy()[:, at], before[:, at], after[:, at]) for at, task in enumerate(tasks)},
    )


@torch.no_grad()
def _probabilities(model: HeavyModel, batch: Batch) -> np.ndarray:
    return torch.sigmoid(model(batch.sides(), batch.request_index, batch.ad_index)).numpy()


def _aucs(labels: np.ndarray, before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    known = ~np.isnan(labels)
    return auc(labels[known], before[known]), auc(labels[known], after[known])
