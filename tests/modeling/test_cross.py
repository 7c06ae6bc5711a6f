"""Cross layers against their formula in NumPy."""

import numpy as np
import pytest
import torch

from modeling.cross import CrossLayer, LowRankCrossLayer


def _inputs(rows: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, dim, generator=generator), torch.randn(rows, dim, generator=generator)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def test_full_rank_layer_is_the_formula() -> None:
    layer = CrossLayer(dim=6)
    torch.nn.init.normal_(layer.linear.bias)
    x0, x = _inputs(5, 6)
    weight, bias = _array(layer.linear.weight), _array(layer.linear.bias)
    expected = _array(x0) * (_array(x) @ weight.T + bias) + _array(x)
    np.testing.assert_allclose(_array(layer(x0, x)), expected, rtol=1e-5, atol=1e-6)


def test_low_rank_layer_is_the_formula() -> None:
    layer = LowRankCrossLayer(dim=6, rank=2)
    torch.nn.init.normal_(layer.up.bias)
    x0, x = _inputs(5, 6)
    weight = _array(layer.up.weight) @ _array(layer.down.weight)
    expected = _array(x0) * (_array(x) @ weight.T + _array(layer.up.bias)) + _array(x)
    np.testing.assert_allclose(_array(layer(x0, x)), expected, rtol=1e-5, atol=1e-6)


def test_low_rank_layer_of_full_rank_equals_the_full_layer() -> None:
    low, full = LowRankCrossLayer(dim=4, rank=4), CrossLayer(dim=4)
    with torch.no_grad():
        full.linear.weight.copy_(low.up.weight @ low.down.weight)
        full.linear.bias.copy_(low.up.bias)
    x0, x = _inputs(3, 4)
    torch.testing.assert_close(low(x0, x), full(x0, x))


@pytest.mark.parametrize("rank", [0, 9])
def test_rank_outside_the_width_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=rf"rank must be in 1..dim, got rank={rank}, dim=8"):
        LowRankCrossLayer(dim=8, rank=rank)
