"""The training loss: every task on its per-impression probability, over the impressions whose label is known."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["mean", "sum"]


def impression_loss(
    logits: Tensor, labels: Tensor, weight: Tensor, totals: Tensor | None = None, *, reduction: Reduction = "mean"
) -> Tensor:
    """Sum over tasks of the weighted mean cross entropy over known labels.

    Computes ``sum_k (sum_b w_b known_bk CE(y_bk, sigmoid(l_bk))) / (sum_b w_b known_bk)``. A task without a known label
    adds nothing. Later tasks are judged on the product of the chain over all impressions, not only on those that were
    clicked, so they see no selection by the click.

    Source: Ma et al. 2018, "Entire Space Multi-Task Model (ESMM)", arXiv:1804.07931.

    Args:
        logits: Per-impression ``[B, K]``, or ``[B, M, K]`` of M members, whose mean loss it is then.
        labels: ``[B, K]``, NaN where not known (not shown, not mature).
        weight: ``[B]``, not negative.
        totals: ``[K]``, the denominators where this is a part of a batch: ``known_weight`` of all of it.
        reduction: ``sum`` leaves the denominators out, so that the gradient grows with the batch.

    Example:
        >>> import torch
        >>> nan = float("nan")
        >>> impression_loss(torch.zeros(2, 2), torch.tensor([[1.0, nan], [0.0, nan]]), torch.ones(2)).item()
        0.6931471824645996
    """
    known = ~labels.isnan()
    members = logits.reshape(len(labels), -1, labels.shape[1])
    known_labels = labels.nan_to_num().unsqueeze(1).expand_as(members)
    entropy = F.binary_cross_entropy_with_logits(members, known_labels, reduction="none").mean(1)
    weights = known * weight.unsqueeze(1)
    if reduction == "sum":
        return (entropy * weights).sum()
    if totals is None:
        totals = weights.sum(0)
    return ((entropy * weights).sum(0) / totals.where(totals > 0, 1.0)).sum()


def known_weight(labels: Tensor, weight: Tensor) -> Tensor:
    """The sum of weights over known labels, ``[K]``."""
    return (~labels.isnan() * weight.unsqueeze(1)).sum(0)
