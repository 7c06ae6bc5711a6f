"""The order within a request: KL between the teacher's and the student's distribution over its candidates.

    p_n = w_n exp(t_n / T) / sum_m w_m exp(t_m / T),   q_n likewise of the student's logits,   m over the request of n
    loss = sum_requests W T^2 sum_n p_n log(p_n / q_n),   W the sum of the request's weights

Teacher and student enter by differences of logits alone: a constant added to all logits of a request changes nothing,
and the gradient ``W T (q - p)`` adds up to 0 over the request. So the term moves ads against each other and leaves the
level of the probabilities to the pointwise term; its least value, 0, is reached where that of the pointwise one is, at
the teacher's own logits. Weights count as repetitions: one of 2 is that candidate twice, one of 0 not at all.

Sources: Cao et al. 2007, "Learning to Rank: From Pairwise Approach to Listwise Approach" (ListNet, its top-one
distribution); Hinton et al. 2015, arXiv:1503.02531 (temperature); Gui et al. 2024, "Calibration-compatible Listwise
Distillation of Privileged Features for CTR Prediction", arXiv:2312.08727 (what a listwise term must not do).

Shapes: N pairs, R requests, H heads.
"""

import torch
from torch import Tensor


def listwise_kl(
    student_logits: Tensor, teacher_logits: Tensor, request_index: Tensor, weight: Tensor, temperature: float = 1.0
) -> Tensor:
    """What each pair adds to the loss above, elementwise; summed over a request's pairs it is that request's KL.

    Args:
        student_logits: [N, H].
        teacher_logits: [N, H], finite.
        request_index: Request of each pair, int64 [N], from 0 to R - 1; in any order.
        weight: Weight of a pair [N], not negative.
        temperature: T; a larger one weighs the lower candidates more.

    Returns:
        [N, H]. Weights are inside: the batch's loss is the mean over N.

    Example:
        >>> logits, request = torch.tensor([[0.0], [2.0]]), torch.tensor([0, 0])
        >>> listwise_kl(logits + 5, logits, request, torch.ones(2)).sum().item()
        0.0
    """
    num_requests = int(request_index.max()) + 1
    weight = weight.unsqueeze(1)
    teacher = _log_softmax(teacher_logits / temperature, request_index, num_requests, weight)
    student = _log_softmax(student_logits / temperature, request_index, num_requests, weight)
    probability = weight * teacher.exp()
    whole = weight.new_zeros(num_requests, 1).index_add(0, request_index, weight).index_select(0, request_index)
    return whole * temperature**2 * probability * (teacher - student)


def _log_softmax(logits: Tensor, request_index: Tensor, num_requests: int, weight: Tensor) -> Tensor:
    """``logits - log(sum_m w_m exp(logits_m))`` over the request of each pair, [N, H].

    A request without any weight gives what :func:`listwise_kl` multiplies by 0, but no NaN.
    """
    places = request_index.unsqueeze(1).expand_as(logits)
    largest = logits.new_full((num_requests, logits.shape[1]), -torch.inf)
    largest = largest.scatter_reduce(0, places, logits.detach(), "amax").index_select(0, request_index)
    shifted = logits - largest
    sums = logits.new_zeros(num_requests, logits.shape[1]).index_add(0, request_index, weight * shifted.exp())
    return shifted - torch.where(sums > 0, sums, 1.0).log().index_select(0, request_index)
