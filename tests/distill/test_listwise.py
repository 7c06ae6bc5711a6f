"""The listwise term: its formula request by request, and that it leaves the level of the logits alone."""

import math

import pytest
import torch

from distill.listwise import listwise_kl

REQUESTS = torch.tensor([1, 0, 1, 2, 0, 1, 0, 3])  # in no order; request 2 and 3 have one pair each
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 1.0, 0.0, 3.0, 1.5, 0.0], dtype=torch.float64)  # request 3 has none


def _logits(seed: int, heads: int = 2) -> torch.Tensor:
    return torch.randn(8, heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def _plain(student: list[float], teacher: list[float], weight: list[float], temperature: float) -> float:
    """The term of one request and head."""

    def distribution(logits: list[float]) -> list[float]:
        terms = [w * math.exp(logit / temperature) for w, logit in zip(weight, logits, strict=True)]
        return [term / math.fsum(terms) for term in terms]

    pairs = zip(distribution(teacher), distribution(student), strict=True)
    return sum(weight) * temperature**2 * math.fsum(p * math.log(p / q) for p, q in pairs if p > 0)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_each_request_is_the_formula(temperature: float) -> None:
    student, teacher = _logits(1), _logits(2)
    found = listwise_kl(student, teacher, REQUESTS, WEIGHT, temperature)
    for request in range(3):
        rows = (request == REQUESTS).nonzero().squeeze(1)
        for head in range(2):
            expected = _plain(
                student[rows, head].tolist(), teacher[rows, head].tolist(), WEIGHT[rows].tolist(), temperature
            )
            assert found[rows, head].sum().item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_gradient_is_orthogonal_to_a_common_shift_of_each_request() -> None:
    """So calibration is left to the pointwise term: no step along it moves the mean logit of a request."""
    student = _logits(1).requires_grad_()
    listwise_kl(student, _logits(2), REQUESTS, WEIGHT, 2.0).sum().backward()
    sums = torch.zeros(4, 2, dtype=torch.float64).index_add(0, REQUESTS, student.grad)
    torch.testing.assert_close(sums, torch.zeros_like(sums), atol=1e-12, rtol=0)
    assert student.grad.abs().max() > 0.1


def test_a_constant_added_to_a_request_changes_nothing() -> None:
    student, teacher = _logits(1), _logits(2)
    shift = torch.tensor([[5.0, -3.0], [0.5, 40.0], [-9.0, 1.0], [2.0, 2.0]], dtype=torch.float64)[REQUESTS]
    torch.testing.assert_close(
        listwise_kl(student + shift, teacher, REQUESTS, WEIGHT), listwise_kl(student, teacher, REQUESTS, WEIGHT)
    )


def test_the_teachers_own_logits_are_its_minimum() -> None:
    """The least of the pointwise term is there too, so neither pulls against the other."""
    teacher = _logits(2).requires_grad_()
    found = listwise_kl(teacher, teacher.detach(), REQUESTS, WEIGHT)
    found.sum().backward()
    torch.testing.assert_close(found, torch.zeros_like(found))
    torch.testing.assert_close(teacher.grad, torch.zeros_like(found), atol=1e-12, rtol=0)


def test_weight_two_equals_the_candidate_twice_and_weight_zero_none() -> None:
    student, teacher = _logits(1), _logits(2)
    rows = torch.tensor([1, 1, 6, 6, 6, 4])  # of request 0
    twice = listwise_kl(student[rows[:5]], teacher[rows[:5]], torch.zeros(5, dtype=torch.long), torch.ones(5))
    rows = torch.tensor([1, 6, 4])
    weighted = listwise_kl(student[rows], teacher[rows], torch.zeros(3, dtype=torch.long), torch.tensor([2.0, 3, 0]))
    torch.testing.assert_close(weighted.sum(0), twice.sum(0))
    assert not weighted[2].any()


def test_extreme_logits_and_requests_without_weight_stay_finite() -> None:
    student = torch.tensor([[800.0], [-800.0], [3.0]], requires_grad=True)
    found = listwise_kl(student, -student.detach(), torch.tensor([0, 0, 1]), torch.tensor([1.0, 1.0, 0.0]))
    found.sum().backward()
    assert found.isfinite().all()
    assert student.grad.isfinite().all()
    assert found[2].item() == 0
