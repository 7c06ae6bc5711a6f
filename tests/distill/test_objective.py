"""The whole objective on real batches against a slow reference, one pair and one request at a time."""

import math

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import ConfigError, LogError
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.data import weighted
from distill.objective import objective
from modeling.batches import Batch, gather
from modeling.examples import Examples

RICH = {
    "label_weight": 0.25,
    "listwise_weight": 0.3,
    "listwise_temperature": 2.0,
    "head_weights": {"click": 0.5, "conversion": 3.0},
    "stage_weights": {"winner": 3.0, "eligible": 0.25},
    "propensity_weights": True,
}


@pytest.fixture(scope="module")
def rich(config: DistillConfig) -> DistillConfig:
    return msgspec.structs.replace(config, **RICH)


@pytest.fixture(scope="module")
def batch(examples: Examples, rich: DistillConfig) -> Batch:
    """Some whole requests, weighted as in training, in no order of pairs."""
    rows = np.flatnonzero(np.asarray(examples.request_row) % 7 == 0)
    found = gather(weighted(examples, rich), np.random.default_rng(1).permutation(rows))
    found.labels[::3, 1] = math.nan  # conversions take longer to be known
    return found


def _student(batch: Batch) -> torch.Tensor:
    return torch.randn(batch.teacher.shape, generator=torch.Generator().manual_seed(3))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _plain(batch: Batch, student: torch.Tensor) -> float:
    """The sums as the docstrings give them."""
    total = 0.0
    for head, head_weight in enumerate((0.5, 3.0)):
        for n in range(len(batch)):
            p, q, y = _sigmoid(batch.teacher[n, head]), _sigmoid(student[n, head]), float(batch.labels[n, head])
            if batch.stage[n] == 2 and not math.isnan(y):
                p = 0.75 * p + 0.25 * y
            cross_entropy = -p * math.log(q) - (1 - p) * math.log(1 - q)
            total += head_weight * float(batch.weight[n]) * cross_entropy / len(batch)
        for request in set(batch.request_index.tolist()):
            rows = [n for n in range(len(batch)) if batch.request_index[n] == request]
            weights = [float(batch.weight[n]) for n in rows]
            p, q = (
                np.array([w * math.exp(logits[n, head] / 2) for n, w in zip(rows, weights, strict=True)])
                for logits in (batch.teacher, student)
            )
            p, q = p / p.sum(), q / q.sum()
            total += head_weight * 0.3 * sum(weights) * 4 * float((p * np.log(p / q)).sum()) / len(batch)
    return total


def test_the_loss_is_its_formula_with_every_weight(schema: FeatureSchema, rich: DistillConfig, batch: Batch) -> None:
    student = _student(batch)
    known = ~batch.labels[batch.stage == 2].isnan()
    assert 0 < int(known.sum()) < known.numel()
    assert len(set(batch.weight.tolist())) > 3  # samples, stages and propensities
    found = objective(schema, rich).loss(student, batch)
    assert found.item() == pytest.approx(_plain(batch, student), rel=1e-5)


def test_the_divergence_is_the_loss_less_a_constant(schema: FeatureSchema, rich: DistillConfig, batch: Batch) -> None:
    wanted = objective(schema, rich)
    differences = [
        (wanted.loss(student, batch) - wanted.divergence(student, batch)).item()
        for student in (_student(batch), batch.teacher, torch.zeros_like(batch.teacher))
    ]
    assert differences == pytest.approx([differences[0]] * 3, rel=1e-4)


def test_without_further_terms_the_teacher_itself_has_divergence_zero(
    schema: FeatureSchema, config: DistillConfig, batch: Batch
) -> None:
    listwise = msgspec.structs.replace(config, listwise_weight=1.0)
    assert objective(schema, config).divergence(batch.teacher, batch).item() == 0
    assert objective(schema, listwise).divergence(batch.teacher, batch).item() == pytest.approx(0, abs=1e-6)


def test_the_listwise_term_leaves_the_gradient_of_a_requests_level_alone(
    schema: FeatureSchema, config: DistillConfig, batch: Batch
) -> None:
    """Summed over a request, the gradient is the pointwise one, whatever the listwise weight."""
    sums = []
    for listwise_weight in (0.0, 5.0):
        student = _student(batch).requires_grad_()
        changed = msgspec.structs.replace(config, listwise_weight=listwise_weight)
        objective(schema, changed).loss(student, batch).backward()
        sums.append(torch.zeros(len(batch.requests), 2).index_add(0, batch.request_index, student.grad))
    torch.testing.assert_close(sums[0], sums[1], atol=1e-6, rtol=1e-4)


def test_the_loss_is_fp32_under_autocast(schema: FeatureSchema, rich: DistillConfig, batch: Batch) -> None:
    wanted, student = objective(schema, rich), _student(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = wanted.loss(student, batch)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, wanted.loss(student, batch), rtol=1e-6, atol=0)


def test_a_head_that_no_task_has_is_refused(schema: FeatureSchema, config: DistillConfig) -> None:
    with pytest.raises(ConfigError, match="head_weights: expected some of click, conversion, got 'clik'"):
        objective(schema, msgspec.structs.replace(config, head_weights={"clik": 1.0}))


def test_weights_that_train_nothing_are_refused(schema: FeatureSchema, config: DistillConfig) -> None:
    nothing = msgspec.structs.replace(config, head_weights={"click": 0.0, "conversion": 0.0})
    with pytest.raises(ConfigError, match="head_weights: expected at least one of click, conversion above 0"):
        objective(schema, nothing)


def test_labels_that_no_winner_has_cannot_count(examples: Examples, config: DistillConfig) -> None:
    losers = examples.select(np.flatnonzero(np.asarray(examples.stage) < 2))
    assert len(weighted(losers, config)) == len(losers)
    with pytest.raises(LogError, match="no winner has a value in label_click, label_conversion, needed for label_wei"):
        weighted(losers, msgspec.structs.replace(config, label_weight=0.5))
