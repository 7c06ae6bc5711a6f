"""Calibration: the last bias of each task is moved until predictions add up to labels.

Shape letters: B impressions, K tasks, M members.
"""

import numpy as np
import torch

from contracts.probability import sigmoid
from contracts.progress import progress
from heavy_ranker.model import HeavyModel
from heavy_ranker.rows import IndexedRows
from modeling.batches import ordered_batches
from modeling.examples import Examples

ENOUGH = 400_000
"""Impressions that the shift is read from, unless another number is asked for."""

_STEPS = 60
_REACH = 16.0  # logits; far beyond any shift of a model that learned something


@torch.no_grad()
def calibrate(model: HeavyModel, examples: Examples, *, batch_size: int = 4096, enough: int = ENOUGH) -> np.ndarray:
    """Shift each task's bias so that its predictions add up to the known labels; returns the shifts, [M, K].

    A logistic regression with an intercept has this property at its optimum. A network stopped at a finite learning
    rate does not: its last step leaves the mean of all predictions a few percent from that of the labels. And what a
    shuffled pass learned is the mean of many days; the newest say more of the day to come.

    Args:
        model: Trained; its heads change in place. Each member of several is calibrated alone.
        examples: What it was trained on: one number a task leaves nothing to learn by heart.
        batch_size: Impressions a batch.
        enough: Impressions to read; of more, the newest.
    """
    examples = _newest(examples, enough)
    conditional = _conditional_logits(model, examples, batch_size)
    labels, weight = np.asarray(examples.labels), np.asarray(examples.weight)
    shifts = np.stack([chain_shifts(conditional[:, member], labels, weight) for member in range(conditional.shape[1])])
    bias = model.ranker.heads.biases[-1]
    bias += torch.from_numpy(shifts).reshape(bias.shape).to(bias)
    return shifts


def chain_shifts(conditional: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """For each task the b_k with ``sum w p_(k-1) sigmoid(c_k + b_k) = sum w y_k`` over the known labels, [K].

    ``p_k`` is the product along the chain with all shifts so far, ``p_0 = 1``. The left side rises with b, so bisection
    finds it. A task without a known positive, or whose labels add up to more than ``p_(k-1)`` can give, is left alone.

    Args:
        conditional: Logits c of each task given the one before, [B, K].
        labels: [B, K], NaN where unknown.
        weight: [B].

    Example:
        >>> labels = np.array([[1.0], [0.0], [0.0], [0.0]])
        >>> chain_shifts(np.zeros((4, 1)), labels, np.ones(4)).round(4).tolist()  # log 1/3
        [-1.0986]
    """
    shifts, before = np.zeros(conditional.shape[1]), weight.astype(np.float64)
    for task, logits in enumerate(conditional.astype(np.float64).T):
        known = ~np.isnan(labels[:, task])
        wanted = float((weight[known] * labels[known, task]).sum())
        if 0.0 < wanted < before[known].sum():
            shifts[task] = _shift(logits[known], before[known], wanted)
        before = before * sigmoid(logits + shifts[task])
    return shifts


def _shift(logits: np.ndarray, weight: np.ndarray, wanted: float) -> float:
    low, high = -_REACH, _REACH
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if (weight * sigmoid(logits + middle)).sum() < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _newest(examples: Examples, enough: int) -> Examples:
    """The newest ``enough`` impressions and what else is of the same moment: whole requests."""
    times = np.asarray(examples.event_time)[examples.request_row]
    if len(times) <= enough:
        return examples
    return examples.select(np.flatnonzero(times >= np.partition(times, -enough)[-enough]))


def _conditional_logits(model: HeavyModel, examples: Examples, batch_size: int) -> np.ndarray:
    """Logits of each task given the one before, [B, M, K]."""
    model.eval()
    found = []
    with progress("Calibrating", total=len(examples)) as advance:
        for batch in ordered_batches(examples, pairs_per_batch=batch_size):
            inputs, rows = model.look_up(batch.sides()), IndexedRows(batch.request_index, len(batch.query.ids))
            state = model.ranker.encode_request(inputs.query, inputs.sequences)
            ads = inputs.ad.index_select(0, batch.ad_index)
            found.append(model.ranker.conditional_logits(state, rows, ads, inputs.pair).cpu().numpy())
            advance(len(batch))
    logits = np.concatenate(found)
    return logits.reshape(len(logits), model.ranker.num_members, -1)
