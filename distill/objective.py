"""What a student is trained for, and what it is judged by while it is: the terms of the loss with their weights.

Shapes: N pairs, H heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.errors import ConfigError
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.listwise import listwise_kl
from distill.loss import bernoulli_kl, entropy, soft_cross_entropy, target_probabilities, weighted_mean
from modeling.batches import Batch


@dataclass(frozen=True)
class Objective:
    """``sum_h v_h * mean_n(w_n * cross_entropy_nh + L * listwise_nh)``, with pair weights in both terms.

    Args:
        head_weights: Weight of a head [H], v.
        label_weight: What a winner's known label counts beside the teacher.
        listwise_weight: L.
        listwise_temperature: Of the distributions over a request's candidates.
    """

    head_weights: Tensor
    label_weight: float = 0.0
    listwise_weight: float = 0.0
    listwise_temperature: float = 1.0

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """What training minimises, for logits [N, H]."""
        cross_entropy = soft_cross_entropy(logits, self._target(batch))
        return weighted_mean(cross_entropy, batch.weight, self.head_weights) + self._listwise(logits, batch)

    def divergence(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss less what no student can undercut, the entropy of its targets; without labels, the KL."""
        if self.label_weight == 0:
            pointwise = bernoulli_kl(logits, batch.teacher)
        else:
            target = self._target(batch)
            pointwise = soft_cross_entropy(logits, target) - entropy(target)
        return weighted_mean(pointwise, batch.weight, self.head_weights) + self._listwise(logits, batch)

    def _target(self, batch: Batch) -> Tensor:
        return target_probabilities(batch.teacher, batch.labels, batch.stage, self.label_weight)

    def _listwise(self, logits: Tensor, batch: Batch) -> Tensor | float:
        if self.listwise_weight == 0:
            return 0.0
        values = listwise_kl(logits, batch.teacher, batch.request_index, batch.weight, self.listwise_temperature)
        return self.listwise_weight * (values.mean(0) * self.head_weights).sum()


def objective(schema: FeatureSchema, config: DistillConfig, device: torch.device | str = "cpu") -> Objective:
    """The objective of a configuration.

    Raises:
        ConfigError: A head weight names no task of the schema, or every task weighs 0.
    """
    unknown = sorted(set(config.head_weights) - set(schema.tasks))
    if unknown:
        raise ConfigError(f"head_weights: expected some of {', '.join(schema.tasks)}, got {unknown[0]!r}")
    weights = [config.head_weights.get(task, 1.0) for task in schema.tasks]
    if not any(weights):
        raise ConfigError(f"head_weights: expected at least one of {', '.join(schema.tasks)} above 0, got 0 for all")
    return Objective(
        torch.tensor(weights, device=device),
        label_weight=config.label_weight,
        listwise_weight=config.listwise_weight,
        listwise_temperature=config.listwise_temperature,
    )
