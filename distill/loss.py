"""The distillation loss: Bernoulli KL between teacher and student on each head, from logits.

    KL(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q)),    p = sigmoid(teacher), q = sigmoid(student)
               = cross_entropy(p, q) - entropy(p)

The teacher's entropy does not depend on the student, so training minimises the soft cross entropy, whose gradient is
``q - p``; what is reported is the KL, in which a gain is not hidden by the entropy. Two terms may join it: labels of
winners (:func:`target_probabilities`) and the order within a request (distill/listwise.py).

Shapes: N pairs, H heads.
"""

import torch
from torch import Tensor
from torch.nn import functional

from contracts.records import STAGES

WINNER = STAGES.index("winner")


def soft_cross_entropy(student_logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of ``sigmoid(student_logits)`` under target probabilities, elementwise.

    Computes ``softplus(s) - p * s``, which neither overflows nor takes the log of a rounded probability.

    Example:
        >>> soft_cross_entropy(torch.tensor([0.0]), torch.tensor([0.3])).item() == torch.log(torch.tensor(2.0)).item()
        True
    """
    return functional.softplus(student_logits) - target * student_logits


def bernoulli_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL of the student from the teacher, elementwise: 0 where both agree, never negative but for rounding."""
    teacher = torch.sigmoid(teacher_logits)
    return soft_cross_entropy(student_logits, teacher) - soft_cross_entropy(teacher_logits, teacher)


def target_probabilities(teacher_logits: Tensor, labels: Tensor, stage: Tensor, label_weight: float) -> Tensor:
    """What each head shall predict: the teacher's probability, blended with the label of a winner where it is known.

    The cross entropy is linear in its target, so a target of ``(1 - w) p + w y`` is the blend of both losses:
    ``(1 - w) cross_entropy(p, q) + w cross_entropy(y, q)``. Where an ad was not shown, or its label is not mature, the
    teacher stays alone: not known is not 0.

    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531, section 2.

    Args:
        teacher_logits: [N, H].
        labels: [N, H], NaN where not known.
        stage: Furthest stage [N], positions in ``contracts.records.STAGES``.
        label_weight: w, in [0, 1].

    Example:
        >>> teacher, labels = torch.zeros(3, 1), torch.tensor([[1.0], [float("nan")], [1.0]])
        >>> target_probabilities(teacher, labels, torch.tensor([2, 2, 1]), 0.5).flatten().tolist()
        [0.75, 0.5, 0.5]
    """
    teacher = torch.sigmoid(teacher_logits)
    if label_weight == 0:
        return teacher
    known = (stage == WINNER).unsqueeze(1) & ~labels.isnan()
    return torch.where(known, (1 - label_weight) * teacher + label_weight * labels, teacher)


def entropy(target: Tensor) -> Tensor:
    """Entropy of a Bernoulli variable, elementwise: the least that the cross entropy under ``target`` can be."""
    return -(torch.xlogy(target, target) + torch.xlogy(1 - target, 1 - target))


def weighted_mean(values: Tensor, weight: Tensor, head_weights: Tensor) -> Tensor:
    """``sum_h head_weights_h * mean_n(weight_n * values_nh)``, without a product that autocast would round to BF16.

    The mean is over the pairs, not over their weights: with inverse propensities a batch's sum of weights is random
    and must not enter the gradient.

    Args:
        values: [N, H].
        weight: Weight of a pair [N]: sample weight, stage weight and inverse propensity, multiplied.
        head_weights: Weight of a head [H].
    """
    return ((values * weight[:, None]).mean(0) * head_weights).sum()
