"""Experts, gates and their mixture against plain formulas."""

import pytest
import torch
from torch import Tensor

from towers.mmoe import CrossStack, Expert, Gate, Mmoe


def _rows(dim: int, rows: int = 5) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(0))


def _cross(x0: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x0 * (x @ weight.T + bias) + x


def _stack(arrangement: str, dim: int = 6) -> CrossStack:
    return CrossStack(dim, full_rank_layers=2, low_rank_layers=2, rank=3, arrangement=arrangement)


def _reference(stack: CrossStack, x0: Tensor) -> Tensor:
    full = x0
    for layer in stack.full_rank:
        full = _cross(x0, full, layer.linear.weight, layer.linear.bias)
    low = full if stack.arrangement == "stacked" else x0
    for layer in stack.low_rank:
        low = _cross(x0, low, layer.up.weight @ layer.down.weight, layer.up.bias)
    return low if stack.arrangement == "stacked" else full + low - x0


@pytest.mark.parametrize("arrangement", ["stacked", "parallel"])
def test_cross_stack_is_its_formula(arrangement: str) -> None:
    stack, x0 = _stack(arrangement), _rows(6)
    torch.testing.assert_close(stack(x0), _reference(stack, x0))


def test_unknown_arrangement_is_refused() -> None:
    with pytest.raises(ValueError, match="arrangement must be stacked or parallel, got 'sideways'"):
        _stack("sideways")


def test_expert_adds_its_mlp_to_the_crossed_input() -> None:
    expert, x0 = Expert(_stack("stacked"), dim=6, hidden_dims=(4,), dropout=0.0), _rows(6)
    z = expert.cross(x0)
    normed = (z - z.mean(-1, keepdim=True)) / torch.sqrt(z.var(-1, keepdim=True, unbiased=False) + 1e-5)
    hidden = torch.relu(normed @ expert.mlp[1].weight.T + expert.mlp[1].bias)
    torch.testing.assert_close(expert(x0), z + hidden @ expert.out.weight.T + expert.out.bias)


def test_expert_without_hidden_layers_is_linear_behind_the_norm() -> None:
    expert, x0 = Expert(torch.nn.Identity(), dim=6, hidden_dims=(), dropout=0.0), _rows(6)
    torch.testing.assert_close(expert(x0), x0 + expert.out(torch.nn.functional.layer_norm(x0, (6,))))


def test_gate_weights_are_a_softmax_over_experts() -> None:
    gate, x = Gate(6, 4, 3), _rows(6)
    logits = torch.relu(x @ gate.hidden.weight.T + gate.hidden.bias) @ gate.out.weight.T + gate.out.bias
    torch.testing.assert_close(gate(x), logits.exp() / logits.exp().sum(-1, keepdim=True))
    torch.testing.assert_close(gate(x).sum(-1), torch.ones(5))


def test_mixture_is_the_sum_over_experts_for_each_head_and_row() -> None:
    experts = [Expert(_stack("stacked"), dim=6, hidden_dims=(4,), dropout=0.0) for _ in range(3)]
    mmoe, x0 = Mmoe(experts, [Gate(6, 4, 3) for _ in range(2)]), _rows(6)
    mixed = mmoe(x0)
    for head, gate in enumerate(mmoe.gates):
        weights = gate(x0)
        for row in range(len(x0)):
            expected = sum(weights[row, x] * experts[x](x0[row : row + 1])[0] for x in range(3))
            torch.testing.assert_close(mixed[row, head], expected)


def test_dropout_acts_in_training_only() -> None:
    expert, x0 = Expert(_stack("stacked"), dim=6, hidden_dims=(64,), dropout=0.5), _rows(6)
    assert not torch.equal(expert(x0), expert(x0))
    expert.eval()
    torch.testing.assert_close(expert(x0), expert(x0), rtol=0, atol=0)
