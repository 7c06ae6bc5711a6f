import numpy as np
import torch

from heavy_ranker.sequence import EventProjection, SwiGluEncoder, masked_mean


def test_encoder_refines_each_event_alone(reference, randomised):
    encoder, events = randomised(SwiGluEncoder(dim=4, expansion=3)), torch.randn(2, 5, 4)
    refined, _ = encoder(events, torch.ones(2, 5))
    gain = reference.array(encoder.norm.gain)
    layer = encoder.feed_forward
    weights = [reference.array(linear.weight).T for linear in (layer.gate, layer.up, layer.down)]
    for row in range(2):
        for event in range(5):
            x = reference.array(events[row, event])
            expected = x + reference.swiglu(reference.rms_norm(x, gain), *weights)
            np.testing.assert_allclose(reference.array(refined)[row, event], expected, atol=1e-5)


def test_padding_stays_zero_whatever_its_embedding():
    project, encoder = EventProjection(event_dim=3, token_dim=4), SwiGluEncoder(dim=4, expansion=2)
    torch.nn.init.ones_(project.project.bias)
    mask = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    events, kept = encoder(project(torch.randn(2, 3, 3), mask), mask)
    assert torch.equal(kept, mask)
    assert torch.equal(events[0, 1:], torch.zeros(2, 4))
    assert torch.equal(events[1, 2:], torch.zeros(1, 4))


def test_masked_mean_equals_the_mean_of_the_true_events():
    events, mask = torch.randn(3, 4, 2), torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    expected = torch.stack([events[0].mean(0), events[1, 0], torch.zeros(2)])
    torch.testing.assert_close(masked_mean(events, mask), expected)
