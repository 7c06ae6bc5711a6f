import numpy as np
import torch

from heavy_ranker.loss import impression_loss

NAN = float("nan")


def test_loss_equals_the_sum_over_known_labels(reference):
    logits, weight = torch.randn(5, 2), torch.tensor([1.0, 2.0, 0.5, 1.0, 0.0])
    labels = torch.tensor([[1.0, 0.0], [0.0, NAN], [1.0, 1.0], [NAN, NAN], [0.0, 0.0]])
    expected = 0.0
    for task in range(2):
        total = weights = 0.0
        for row in range(5):
            y, w = labels[row, task].item(), weight[row].item()
            if not np.isnan(y):
                p = reference.sigmoid(logits[row, task].item())
                total += w * -(y * np.log(p) + (1 - y) * np.log(1 - p))
                weights += w
        expected += total / weights
    np.testing.assert_allclose(impression_loss(logits, labels, weight).item(), expected, rtol=1e-5)


def test_unknown_labels_carry_no_gradient():
    logits = torch.randn(3, 2, requires_grad=True)
    labels = torch.tensor([[1.0, NAN], [0.0, NAN], [NAN, NAN]])
    impression_loss(logits, labels, torch.ones(3)).backward()
    assert torch.equal(logits.grad != 0, torch.tensor([[True, False], [True, False], [False, False]]))
    assert torch.isfinite(logits.grad).all()


def test_a_task_without_known_labels_adds_nothing():
    logits, labels = torch.randn(4, 2), torch.tensor([[1.0, NAN], [0.0, NAN], [1.0, NAN], [0.0, NAN]])
    one_task = impression_loss(logits[:, :1], labels[:, :1], torch.ones(4))
    torch.testing.assert_close(impression_loss(logits, labels, torch.ones(4)), one_task)


def test_a_summed_loss_is_the_mean_times_the_known_weight():
    logits, weight = torch.randn(5, 1), torch.rand(5) + 0.1
    labels = torch.tensor([[1.0], [0.0], [NAN], [0.0], [1.0]])
    known = weight[[0, 1, 3, 4]].sum()
    summed = impression_loss(logits, labels, weight, reduction="sum")
    torch.testing.assert_close(summed, impression_loss(logits, labels, weight) * known)


def test_members_train_apart():
    """The loss of members is the mean of their losses, so that no member's gradient depends on another."""
    labels = torch.tensor([[1.0, 0.0], [0.0, float("nan")]])
    weight = torch.tensor([1.0, 2.0])
    members = torch.randn(2, 3, 2)
    alone = [impression_loss(members[:, at], labels, weight) for at in range(3)]
    torch.testing.assert_close(impression_loss(members, labels, weight), torch.stack(alone).mean())
