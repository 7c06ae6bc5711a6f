import pytest
import torch
from torch import nn

from contracts.errors import ConfigError
from modeling.dense_optimizer import dense_optimizer, scaled_rate
from modeling.loop_config import LoopConfig


def step(config: LoopConfig, parameter: nn.Parameter, gradients: list[torch.Tensor]) -> None:
    optimizer = dense_optimizer([parameter], config)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()


def test_adagrad_equals_its_equation() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(3, 2), [torch.randn(3, 2) for _ in range(3)]
    parameter = nn.Parameter(start.clone())
    step(LoopConfig(dense_optimizer="adagrad", learning_rate=0.1), parameter, gradients)
    expected, total = start, torch.zeros(3, 2)
    for gradient in gradients:
        total = total + gradient**2
        expected = expected - 0.1 * gradient / (total.sqrt() + 1e-8)
    torch.testing.assert_close(parameter.detach(), expected)


def test_decay_spares_vectors() -> None:
    matrix, vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    optimizer = dense_optimizer([matrix, vector], LoopConfig(weight_decay=0.5))
    decays = {id(group["params"][0]): group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {id(matrix): 0.5, id(vector): 0.0}


def test_a_rate_for_a_reference_batch_needs_a_batch_size() -> None:
    with pytest.raises(ConfigError, match=r"loop\.reference_batch_size: got 64, but this training has no batch size"):
        scaled_rate(LoopConfig(reference_batch_size=64), None)
