"""The optimiser of the dense layers, and the rate that it starts from."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from contracts.errors import ConfigError
from modeling.loop_config import LoopConfig


def dense_optimizer(parameters: Sequence[nn.Parameter], config: LoopConfig) -> torch.optim.Optimizer:
    """AdamW whose decay spares biases, scales and other vectors; or Adagrad, as the tables have it."""
    if config.dense_optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=config.learning_rate, eps=1e-8)
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


def scaled_rate(config: LoopConfig, batch_size: int | None) -> float:
    """The peak rate at the batch size of a run: times the root of its ratio to ``reference_batch_size``, where set.

    A batch of k times the examples has a gradient whose noise is smaller by the root of k. Adam divides by that noise,
    and follows the same stochastic process with a rate that is larger by the root.

    Source: Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", arXiv:2205.10287.

    Args:
        batch_size: Examples of a whole batch, over all processes.

    Example:
        >>> scaled_rate(LoopConfig(learning_rate=0.25, reference_batch_size=256), 1024)
        0.5
    """
    if config.reference_batch_size is None:
        return config.learning_rate
    if batch_size is None:
        raise ConfigError(
            f"loop.reference_batch_size: got {config.reference_batch_size}, but this training has no batch size"
        )
    return config.learning_rate * math.sqrt(batch_size / config.reference_batch_size)
