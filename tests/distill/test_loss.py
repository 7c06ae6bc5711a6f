"""The distillation loss against its formula, its gradient and its minimum."""

import math

import numpy as np
import pytest
import torch

from distill.loss import bernoulli_kl, entropy, soft_cross_entropy, target_probabilities, weighted_mean


def _logits(seed: int, pairs: int = 7, heads: int = 2) -> torch.Tensor:
    return torch.randn(pairs, heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def _plain_kl(teacher: torch.Tensor, student: torch.Tensor) -> np.ndarray:
    p, q = 1 / (1 + np.exp(-teacher.numpy())), 1 / (1 + np.exp(-student.numpy()))
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


def test_kl_is_the_formula() -> None:
    student, teacher = _logits(1), _logits(2)
    np.testing.assert_allclose(bernoulli_kl(student, teacher).numpy(), _plain_kl(teacher, student), rtol=1e-9)


def test_kl_of_equal_logits_is_zero() -> None:
    logits = _logits(3)
    np.testing.assert_array_equal(bernoulli_kl(logits, logits).numpy(), 0)


def test_kl_is_the_cross_entropy_less_the_entropy() -> None:
    student, target = _logits(1), torch.sigmoid(_logits(2))
    torch.testing.assert_close(soft_cross_entropy(student, target) - entropy(target), bernoulli_kl(student, _logits(2)))
    assert entropy(torch.tensor([0.0, 1.0])).tolist() == [0.0, 0.0]


def test_gradient_is_student_minus_teacher_probability() -> None:
    student, teacher = _logits(1).requires_grad_(), torch.sigmoid(_logits(2))
    soft_cross_entropy(student, teacher).sum().backward()
    torch.testing.assert_close(student.grad, torch.sigmoid(student.detach()) - teacher)


def test_extreme_logits_stay_finite() -> None:
    student, teacher = torch.tensor([[80.0, -80.0]]), torch.tensor([[-80.0, 80.0]])
    assert torch.isfinite(bernoulli_kl(student, teacher)).all()


@pytest.mark.parametrize("label_weight", [0.0, 0.3, 1.0])
def test_labels_of_winners_blend_both_losses(label_weight: float) -> None:
    """Row by row, head by head, as one would write it down."""
    student, teacher = _logits(1), _logits(2)
    stage = torch.tensor([2, 2, 1, 0, 2, 2, 1])
    labels = torch.tensor([[1, 0], [0, math.nan], [1, 1], [0, 0], [math.nan, math.nan], [0.25, 1], [math.nan, 0]])
    labels = labels.double()
    found = soft_cross_entropy(student, target_probabilities(teacher, labels, stage, label_weight))
    for n in range(7):
        for h in range(2):
            p, q = (1 / (1 + math.exp(-float(logits[n, h]))) for logits in (teacher, student))
            expected = -p * math.log(q) - (1 - p) * math.log(1 - q)
            y = float(labels[n, h])
            if stage[n] == 2 and not math.isnan(y):
                of_label = -y * math.log(q) - (1 - y) * math.log(1 - q)
                expected = (1 - label_weight) * expected + label_weight * of_label
            assert found[n, h].item() == pytest.approx(expected, rel=1e-9)


def test_mean_weighs_pairs_and_heads() -> None:
    values = _logits(1)
    weight = torch.tensor([1, 0, 2, 1, 0.5, 3, 1], dtype=torch.float64)
    head_weights = torch.tensor([1.0, 4.0], dtype=torch.float64)
    expected = sum(head_weights[h].item() * math.fsum((weight * values[:, h]).tolist()) / len(weight) for h in range(2))
    assert weighted_mean(values, weight, head_weights).item() == pytest.approx(expected, rel=1e-12)
