"""The distillation loss: Bernoulli KL between teacher and student on each head, from logits.

    KL(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q)),    p = sigmoid(teacher), q = sigmoid(student)
               = cross_entropy(p, q) - entropy(p)

The teacher's entropy does not depend on the student, so training minimises the soft cross entropy, whose gradient is
``q - p``; what is reported is the KL, in which a gain is not hidden by the entropy.

Shapes: N pairs, H heads.
"""

import torch
from torch import Tensor
from torch.nn import functional


def soft_cross_entropy(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Cross entropy of ``sigmoid(student_logits)`` under the teacher's probabilities, elementwise.

    Computes ``softplus(s) - sigmoid(t) * s``, which neither overflows nor takes the log of a rounded probability.

    Example:
        >>> soft_cross_entropy(torch.tensor([0.0]), torch.tensor([3.0])).item() == torch.log(torch.tensor(2.0)).item()
        True
    """
    return functional.softplus(student_logits) - torch.sigmoid(teacher_logits) * student_logits


def bernoulli_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL of the student from the teacher, elementwise: 0 where both agree, never negative but for rounding."""
    entropy = soft_cross_entropy(teacher_logits, teacher_logits)
    return soft_cross_entropy(student_logits, teacher_logits) - entropy


def distillation_loss(student_logits: Tensor, teacher_logits: Tensor, weight: Tensor, head_weights: Tensor) -> Tensor:
    """Weighted soft cross entropy over pairs and heads.

    Args:
        student_logits: [N, H].
        teacher_logits: [N, H], finite.
        weight: Weight of a pair [N]: sample weight, stage weight and inverse propensity, multiplied.
        head_weights: Weight of a head [H].

    Returns:
        ``sum_h head_weights_h * mean_n(weight_n * cross_entropy_nh)``. The mean is over the pairs, not over their
        weights: with inverse propensities a batch's sum of weights is random and must not enter the gradient.
    """
    cross_entropy = soft_cross_entropy(student_logits, teacher_logits)
    return weighted_mean(cross_entropy, weight, head_weights)


def weighted_mean(values: Tensor, weight: Tensor, head_weights: Tensor) -> Tensor:
    """``sum_h head_weights_h * mean_n(weight_n * values_nh)``, without a product that autocast would round to BF16."""
    return ((values * weight[:, None]).mean(0) * head_weights).sum()
