import numpy as np
import pytest
import torch

from heavy_ranker.token_mixer import TokenMixer, mix, revert


@pytest.mark.parametrize("num_slices", [1, 2, 4])
def test_mixer_equals_token_by_token(reference, randomised, num_slices):
    mixer = randomised(TokenMixer(num_tokens=3, token_dim=8, num_slices=num_slices, expansion=2))
    tokens = torch.randn(3, 2, 8)
    mixed = reference.array(mixer(tokens))
    for row in range(2):
        expected = reference.mix_tokens(reference.array(tokens[:, row]), mixer)
        np.testing.assert_allclose(mixed[:, row], expected, rtol=1e-4, atol=1e-4)


def test_mixed_token_holds_one_slice_of_every_token():
    tokens = torch.arange(24.0).reshape(3, 2, 4)
    torch.testing.assert_close(mix(tokens, 2)[1, 0], torch.cat([tokens[n, 0, 2:] for n in range(3)]))


def test_revert_undoes_mix():
    tokens = torch.randn(5, 3, 12)
    assert torch.equal(revert(mix(tokens, 4), 5), tokens)


def test_block_starts_close_to_the_identity():
    tokens = torch.randn(3, 2, 8)
    assert (TokenMixer(3, 8, 2, 2)(tokens) - tokens).abs().max() < 0.1


def test_every_token_reads_every_other():
    mixer, tokens = TokenMixer(3, 8, 2, 2), torch.randn(3, 1, 8, requires_grad=True)
    for n in range(3):
        (gradient,) = torch.autograd.grad(mixer(tokens)[n].sum(), tokens)
        assert (gradient.abs().sum(-1) > 0).all()


def test_slices_must_divide_the_width():
    with pytest.raises(ValueError, match="num_slices must divide token_dim, got num_slices=3, token_dim=8"):
        TokenMixer(num_tokens=2, token_dim=8, num_slices=3, expansion=1)
