import numpy as np
import torch

from heavy_ranker.ple import ProgressiveExtraction, TaskHeads, impression_logits, mean_of_members


def test_extraction_equals_gated_experts_one_by_one(reference, randomised):
    layer = randomised(ProgressiveExtraction(in_dim=5, num_tasks=3, shared_experts=2, task_experts=1, expert_dim=4))
    x = torch.randn(2, 5)
    mixed = reference.array(layer(x))
    for task in range(3):
        expected = [reference.extract(row, layer, task) for row in reference.array(x)]
        np.testing.assert_allclose(mixed[task], expected, atol=1e-5)


def test_a_task_does_not_read_the_experts_of_another():
    layer = ProgressiveExtraction(in_dim=5, num_tasks=2, shared_experts=1, task_experts=2, expert_dim=4)
    layer(torch.randn(6, 5))[0].sum().backward()
    used = layer.experts.grad.abs().sum((1, 2)) > 0
    assert used.tolist() == [True, True, True, False, False]


def test_heads_equal_an_mlp_a_task(reference, randomised):
    heads, x = randomised(TaskHeads(num_tasks=2, in_dim=4, hidden_dims=[6, 3])), torch.randn(2, 3, 4)
    logits = reference.array(heads(x))
    for task in range(2):
        expected = [reference.head_logit(row, heads, task) for row in reference.array(x[task])]
        np.testing.assert_allclose(logits[:, task], expected, rtol=1e-4, atol=1e-4)


def test_impression_logits_equal_the_logit_of_the_product(reference):
    conditional = torch.randn(50, 3, dtype=torch.float64)
    product = np.cumprod(reference.sigmoid(conditional.numpy()), axis=1)
    np.testing.assert_allclose(impression_logits(conditional).numpy(), np.log(product / (1 - product)), atol=1e-9)


def test_impression_logits_keep_what_float32_probabilities_lose():
    logits = impression_logits(torch.tensor([[40.0, 35.0], [-60.0, -60.0], [60.0, -50.0]]))
    expected = torch.tensor([[40.0, 35.0 - np.log1p(np.exp(-5.0))], [-60.0, -120.0], [60.0, -50.0]])
    torch.testing.assert_close(logits, expected.to(torch.float32))


def test_impression_logits_have_finite_gradients_everywhere():
    conditional = torch.tensor([[80.0, 80.0], [-80.0, 80.0], [80.0, -80.0], [-80.0, -80.0]], requires_grad=True)
    impression_logits(conditional).sum().backward()
    assert torch.isfinite(conditional.grad).all()


def test_mean_of_members_is_the_logit_of_the_mean_probability():
    logits = torch.randn(6, 4, 2, dtype=torch.float64) * 4
    expected = torch.logit(torch.sigmoid(logits).mean(1))
    torch.testing.assert_close(mean_of_members(logits), expected)


def test_mean_of_members_keeps_far_probabilities():
    """Where a probability in fp32 would be 1 exactly, and its logit infinite."""
    torch.testing.assert_close(mean_of_members(torch.full((1, 3, 1), 40.0)), torch.tensor([[40.0]]))
    torch.testing.assert_close(mean_of_members(torch.full((1, 3, 1), -200.0)), torch.tensor([[-200.0]]))
