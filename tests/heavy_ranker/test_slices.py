"""The swap's own operator against the plain permutation: it only moves numbers, so values and gradients are equal."""

import pytest
import torch

from heavy_ranker.slices import swap_slices
from heavy_ranker.token_mixer import TokenMixer


def plain(x):
    return x.permute(2, 1, 0, 3).flatten(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
def test_values_and_gradients_are_those_of_the_permutation(dtype, width):
    x, weight = torch.randn(3, 5, 2, width, dtype=dtype), torch.randn(2, 5, 3 * width, dtype=dtype)
    fast, slow = x.clone().requires_grad_(), x.clone().requires_grad_()
    assert torch.equal(swap_slices(fast), plain(slow))
    for swap, inputs in ((swap_slices, fast), (plain, slow)):
        (swap(inputs) * weight).sum().backward()
    assert torch.equal(fast.grad, slow.grad)


def test_inputs_and_gradients_may_lie_in_any_order_in_memory():
    x = torch.randn(4, 2, 5, 3).permute(3, 2, 1, 0).requires_grad_()
    swapped = swap_slices(x)
    assert torch.equal(swapped, plain(x))
    gradient = torch.randn(5, 2, 12).transpose(0, 1)
    (found,) = torch.autograd.grad(swapped, x, gradient)
    (expected,) = torch.autograd.grad(plain(x), x, gradient)
    assert torch.equal(found, expected)


def test_the_operator_keeps_its_contract():
    torch.library.opcheck(torch.ops.adsieve.swap_slices.default, (torch.randn(3, 5, 2, 8, requires_grad=True),))


def test_a_mixer_computes_alike_with_and_without_gradients(randomised):
    mixer, tokens = randomised(TokenMixer(num_tokens=3, token_dim=8, num_slices=2, expansion=2)), torch.randn(3, 5, 8)
    with torch.no_grad():
        expected = mixer(tokens)
    torch.testing.assert_close(mixer(tokens), expected, atol=1e-6, rtol=1e-6)


def test_an_exported_mixer_has_the_plain_permutation():
    mixer = TokenMixer(num_tokens=3, token_dim=8, num_slices=2, expansion=2)
    exported = torch.export.export(mixer, (torch.randn(3, 5, 8),))
    assert not any("adsieve" in str(node.target) for node in exported.graph.nodes)
