import msgspec
import numpy as np
import pytest
import torch

from heavy_ranker.build import build_ranker
from heavy_ranker.flops import count_flops
from heavy_ranker.rows import EvenRows, IndexedRows
from heavy_ranker.split_mixer import SplitMixer


@pytest.fixture
def mixer(randomised):
    return randomised(SplitMixer(request_tokens=2, ad_tokens=3, token_dim=8, num_slices=4, expansion=2))


def boosted(mixer, request, others, rows):
    tokens, gate, up = mixer.request_part(request)
    return torch.cat([rows.repeat(tokens.transpose(0, 1)).transpose(0, 1), mixer(others, rows, gate, up)])


@pytest.mark.parametrize("rows", [EvenRows(2, 2), IndexedRows(torch.tensor([1, 0, 1, 1]), 2)], ids=["even", "indexed"])
def test_mixer_equals_the_full_mixer_with_masked_weights(reference, mixer, rows):
    request, others = torch.randn(2, 2, 8), torch.randn(3, 4, 8)
    found = reference.array(boosted(mixer, request, others, rows))
    owner = rows.repeat(torch.arange(2)).tolist()
    for row in range(4):
        sides = reference.array(request[:, owner[row]]), reference.array(others[:, row])
        np.testing.assert_allclose(found[:, row], reference.mix_masked(*sides, mixer), rtol=1e-4, atol=1e-4)


def test_request_tokens_read_no_ad_and_all_others_read_everything(mixer):
    request = torch.randn(2, 1, 8, requires_grad=True)
    others = torch.randn(3, 1, 8, requires_grad=True)
    found = boosted(mixer, request, others, EvenRows(1, 1))
    for n in range(5):
        by_request, by_others = torch.autograd.grad(found[n].sum(), [request, others], retain_graph=True)
        assert (by_request.abs().sum(-1) > 0).all()
        assert (by_others.abs().sum(-1) > 0).all() == (n >= 2) == by_others.any()


def test_the_state_carries_every_layer_and_a_further_ad_costs_less(schema, sizes):
    two = msgspec.structs.replace(sizes, num_layers=2)
    separate = build_ranker(schema, msgspec.structs.replace(two, request_only=True))
    flat = torch.randn(1, separate.request_tokens.in_dim)
    events = {"clicks": (torch.randn(1, 5, 12), torch.ones(1, 5)), "views": (torch.randn(1, 3, 8), torch.ones(1, 3))}
    state = separate.encode_request(flat, events)
    assert {f"layer{index}.{part}" for index in (0, 1) for part in ("gate", "up", "views.keys")} <= state.keys()
    assert count_flops(separate, schema).ad < count_flops(build_ranker(schema, two), schema).ad
