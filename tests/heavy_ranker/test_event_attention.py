import numpy as np
import pytest
import torch

from heavy_ranker.event_attention import EventAttention, LongerEncoder, TransformerEncoder

LENGTHS = (5, 2, 0)
MASK = torch.tensor([[float(at < length) for at in range(5)] for length in LENGTHS])


@pytest.fixture(params=["transformer", "longer"])
def encoder(request, randomised):
    if request.param == "transformer":
        return randomised(TransformerEncoder(dim=6, num_heads=3, expansion=2))
    return randomised(LongerEncoder(dim=6, num_heads=3, expansion=2, length=3))


@pytest.fixture
def events():
    return torch.randn(3, 5, 6)


def test_encoder_equals_event_by_event(reference, encoder, events):
    encoded, mask = encoder(events, MASK)
    for row, length in enumerate(LENGTHS):
        expected = reference.encode_events(reference.array(events[row, :length]), encoder)
        np.testing.assert_allclose(reference.array(encoded[row])[mask[row] > 0], expected, atol=1e-4)


def test_what_stands_at_padding_does_not_matter_and_leaves_zeros(encoder, events):
    encoded, mask = encoder(events, MASK)
    noisy, _ = encoder(torch.where(MASK.unsqueeze(-1) > 0, events, torch.randn_like(events) * 100.0), MASK)
    torch.testing.assert_close(noisy, encoded)
    assert not encoded[mask == 0].any()


def test_an_empty_sequence_has_finite_gradients(encoder, events):
    events.requires_grad_()
    encoded, _ = encoder(events, torch.zeros(3, 5))
    encoded.sum().backward()
    assert not encoded.any()
    assert events.grad.isfinite().all()


def test_a_transformer_keeps_all_events_and_longer_the_latest(events):
    _, whole = TransformerEncoder(6, 3, 2)(events, MASK)
    latest, short = LongerEncoder(6, 3, 2, length=3)(events, MASK)
    assert torch.equal(whole, MASK)
    assert torch.equal(short, MASK[:, :3])
    assert latest.shape == (3, 3, 6)
    assert LongerEncoder(6, 3, 2, length=9)(events, MASK)[0].shape == (3, 5, 6)


def test_the_latest_events_read_the_oldest():
    events = torch.randn(1, 5, 6, requires_grad=True)
    latest, _ = LongerEncoder(6, 3, 2, length=2)(events, torch.ones(1, 5))
    (gradient,) = torch.autograd.grad(latest.sum(), events)
    assert (gradient.abs().sum(-1) > 0).all()


def test_steeper_slopes_prefer_neighbours():
    attention, events = EventAttention(dim=2, num_heads=1), torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]])
    for linear in (attention.to_value, attention.to_out):
        torch.nn.init.eye_(linear.weight)
    torch.nn.init.zeros_(attention.to_query.weight)
    own = []
    for slope in (0.0, 1.0, 4.0):
        torch.nn.init.constant_(attention.slopes, slope)
        own.append(attention(events, events, torch.ones(1, 3))[0, 0, 0].item())
    assert own == sorted(own)
    assert own[0] == pytest.approx(1 / 3)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="num_heads must divide dim, got num_heads=3, dim=8"):
        EventAttention(dim=8, num_heads=3)
