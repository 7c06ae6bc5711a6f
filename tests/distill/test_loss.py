"""The distillation loss against its formula, its gradient and its minimum."""

import math

import numpy as np
import pytest
import torch

from distill.loss import bernoulli_kl, distillation_loss, soft_cross_entropy


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


def test_gradient_is_student_minus_teacher_probability() -> None:
    student, teacher = _logits(1).requires_grad_(), _logits(2)
    soft_cross_entropy(student, teacher).sum().backward()
    torch.testing.assert_close(student.grad, torch.sigmoid(student.detach()) - torch.sigmoid(teacher))


def test_extreme_logits_stay_finite() -> None:
    student, teacher = torch.tensor([[80.0, -80.0]]), torch.tensor([[-80.0, 80.0]])
    assert torch.isfinite(bernoulli_kl(student, teacher)).all()


def test_loss_weighs_pairs_and_heads() -> None:
    student, teacher = _logits(1), _logits(2)
    weight = torch.tensor([1, 0, 2, 1, 0.5, 3, 1], dtype=torch.float64)
    head_weights = torch.tensor([1.0, 4.0], dtype=torch.float64)
    entropy = soft_cross_entropy(student, teacher)
    expected = sum(
        head_weights[h].item() * math.fsum((weight * entropy[:, h]).tolist()) / len(weight) for h in range(2)
    )
    assert distillation_loss(student, teacher, weight, head_weights).item() == pytest.approx(expected, rel=1e-12)


def test_weight_two_equals_the_row_twice() -> None:
    student, teacher = _logits(1, pairs=2), _logits(2, pairs=2)
    heads = torch.ones(2, dtype=torch.float64)
    weighted = distillation_loss(student, teacher, torch.tensor([2.0, 1.0], dtype=torch.float64), heads) * 2
    rows = torch.tensor([0, 0, 1])
    repeated = distillation_loss(student[rows], teacher[rows], torch.ones(3, dtype=torch.float64), heads) * 3
    torch.testing.assert_close(weighted, repeated)


def test_loss_is_fp32_under_autocast() -> None:
    student, teacher, weight = _logits(1).float(), _logits(2).float(), torch.ones(7)
    plain = distillation_loss(student, teacher, weight, torch.ones(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = distillation_loss(student, teacher, weight, torch.ones(2))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, plain, rtol=1e-6, atol=0)
