import numpy as np
import torch

from heavy_ranker.norm import RmsNorm
from heavy_ranker.swiglu import DOWN_INIT_SCALE, PerTokenSwiGlu, SwiGlu


def test_rms_norm_equals_its_formula(reference, randomised):
    norm, x = randomised(RmsNorm(6)), torch.randn(4, 6)
    expected = [reference.rms_norm(row, reference.array(norm.gain)) for row in reference.array(x)]
    np.testing.assert_allclose(reference.array(norm(x)), expected, atol=1e-5)


def test_rms_norm_keeps_zeros():
    assert torch.equal(RmsNorm(3)(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_swiglu_equals_its_formula(reference, randomised):
    layer, x = randomised(SwiGlu(dim=5, hidden_dim=7)), torch.randn(3, 5)
    weights = [reference.array(linear.weight).T for linear in (layer.gate, layer.up, layer.down)]
    expected = [reference.swiglu(row, *weights) for row in reference.array(x)]
    np.testing.assert_allclose(reference.array(layer(x)), expected, atol=1e-5)


def test_per_token_swiglu_gives_each_token_its_own_weights(reference, randomised):
    layer, x = randomised(PerTokenSwiGlu(num_tokens=3, dim=4, hidden_dim=6)), torch.randn(3, 2, 4)
    gate, up, down = (reference.array(weight) for weight in (layer.gate, layer.up, layer.down))
    expected = [[reference.swiglu(row, gate[n], up[n], down[n]) for row in reference.array(x[n])] for n in range(3)]
    np.testing.assert_allclose(reference.array(layer(x)), expected, atol=1e-5)


def test_down_projection_starts_small():
    layer = PerTokenSwiGlu(num_tokens=2, dim=8, hidden_dim=8)
    ratio = (layer.down.abs().mean() / layer.up.abs().mean()).item()
    assert abs(ratio / DOWN_INIT_SCALE - 1) < 0.2
