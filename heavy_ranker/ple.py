"""Multi-task part: experts shared and of one task, gates between them, and a head for each task."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heavy_ranker.swiglu import stacked_xavier


class ProgressiveExtraction(nn.Module):
    """One extraction layer: each task mixes its own experts with the shared ones by a gate.

    Computes for task k ``sum_x softmax(G_k input)_x * relu(W_x input + b_x)`` over the experts x that are shared or its
    own. It is the last layer of PLE, which has no gate for the shared experts; alone it is CGC.

    Source: Tang et al. 2020, "Progressive Layered Extraction (PLE)", RecSys 2020.

    Args:
        in_dim: Width of the input.
        num_tasks: K.
        shared_experts: Experts that every task reads.
        task_experts: Experts of each task.
        expert_dim: Width of an expert's output.

    Returns:
        ``[K, B, expert_dim]``

    Example:
        >>> layer = ProgressiveExtraction(in_dim=4, num_tasks=2, shared_experts=1, task_experts=2, expert_dim=8)
        >>> layer(torch.ones(3, 4)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, in_dim: int, num_tasks: int, shared_experts: int, task_experts: int, expert_dim: int) -> None:
        super().__init__()
        self.num_tasks, self.shared_experts, self.task_experts = num_tasks, shared_experts, task_experts
        num_experts = shared_experts + num_tasks * task_experts
        self.experts = nn.Parameter(stacked_xavier(num_experts, in_dim, expert_dim))
        self.expert_bias = nn.Parameter(torch.zeros(num_experts, 1, expert_dim))
        self.gates = nn.Parameter(stacked_xavier(num_tasks, in_dim, shared_experts + task_experts))

    def forward(self, x: Tensor) -> Tensor:
        width = self.expert_bias.numel()
        # One product with all experts and gates, which reads the wide input once.
        weight = torch.cat([_side_by_side(self.experts), _side_by_side(self.gates)], dim=1)
        bias = torch.cat([self.expert_bias.flatten(), self.gates.new_zeros(weight.shape[1] - width)])
        product = torch.addmm(bias, x, weight)
        experts = F.relu(product[:, :width]).unflatten(1, (self.expert_bias.shape[0], -1))
        gates = torch.softmax(product[:, width:].unflatten(1, (self.num_tasks, -1)), dim=-1)
        mixed = [(gates[:, task].unsqueeze(2) * self._readable(experts, task)).sum(1) for task in range(self.num_tasks)]
        return torch.stack(mixed)

    def _readable(self, experts: Tensor, task: int) -> Tensor:
        """The experts ``[B, X, D]`` that a task reads."""
        start = self.shared_experts + task * self.task_experts
        return torch.cat([experts[:, : self.shared_experts], experts[:, start : start + self.task_experts]], dim=1)


def _side_by_side(matrices: Tensor) -> Tensor:
    """``[F, M * D]`` from ``[M, F, D]``."""
    return matrices.transpose(0, 1).flatten(1)


class TaskHeads(nn.Module):
    """An MLP for each task, from its extracted features to one logit.

    Args:
        num_tasks: K.
        in_dim: Width of a task's input.
        hidden_dims: Widths of the hidden layers, ReLU after each.

    Example:
        >>> TaskHeads(num_tasks=2, in_dim=8, hidden_dims=[4])(torch.ones(2, 3, 8)).shape
        torch.Size([3, 2])
    """

    def __init__(self, num_tasks: int, in_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        dims = [in_dim, *hidden_dims, 1]
        shapes = list(pairwise(dims))
        self.weights = nn.ParameterList(nn.Parameter(stacked_xavier(num_tasks, a, b)) for a, b in shapes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(num_tasks, 1, b)) for _, b in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, K]`` from ``[K, B, in_dim]``."""
        last = len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x if index == last else F.relu(x)
        return x.squeeze(-1).transpose(0, 1)


def impression_logits(conditional: Tensor) -> Tensor:
    """Logits of the per-impression probabilities of a task chain, from logits that are conditional on the task before.

    ``p_k = sigmoid(c_1) * ... * sigmoid(c_k)`` and the result is ``log p_k - log(1 - p_k)``. Both logarithms are
    carried along the chain, ``log(1 - p_k) = logaddexp(log(1 - p_(k-1)), log p_(k-1) + log sigmoid(-c_k))``, so nothing
    is lost where a probability is close to 0 or 1.

    Source: Ma et al. 2018, "Entire Space Multi-Task Model (ESMM)", arXiv:1804.07931, for the product.

    Args:
        conditional: ``[B, K]`` in the order of the chain.

    Example:
        >>> logits = impression_logits(torch.tensor([[0.0, 0.0]]))
        >>> torch.sigmoid(logits).tolist()
        [[0.5, 0.25]]
    """
    log_p = _log_sigmoid(conditional[:, 0])
    log_not_p = _log_sigmoid(-conditional[:, 0])
    logits = [conditional[:, 0]]
    for task in range(1, conditional.shape[1]):
        log_not_p = _logaddexp(log_not_p, log_p + _log_sigmoid(-conditional[:, task]))
        log_p = log_p + _log_sigmoid(conditional[:, task])
        logits.append(log_p - log_not_p)
    return torch.stack(logits, dim=1)


def mean_of_members(logits: Tensor) -> Tensor:
    """Logits ``[B, K]`` of the mean probability of members ``[B, M, K]``, precise where it is close to 0 or 1.

    ``log mean p - log mean (1 - p)``, of which each is a sum of exponentials after the largest is taken out.

    Source: heads that share a trunk and train apart, as in Gorishniy et al. 2024, "TabM", arXiv:2410.24210.

    Example:
        >>> torch.sigmoid(mean_of_members(torch.logit(torch.tensor([[[0.2], [0.4]]])))).round(decimals=4)
        tensor([[0.3000]])
    """
    if logits.shape[1] == 1:
        return logits.squeeze(1)
    return torch.logsumexp(_log_sigmoid(logits), dim=1) - torch.logsumexp(_log_sigmoid(-logits), dim=1)


def _log_sigmoid(x: Tensor) -> Tensor:
    """Finite for any x in every graph engine, where ``log(sigmoid(x))`` is not."""
    return -F.softplus(-x)


def _logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """``log(exp(a) + exp(b))`` from operations that every graph engine has."""
    return torch.maximum(a, b) + F.softplus(-(a - b).abs())
