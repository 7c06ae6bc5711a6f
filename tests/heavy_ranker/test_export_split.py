"""The exported form of HyFormer equals the trained one and leaves out what it says."""

import copy

import msgspec
import pytest
import torch

from heavy_ranker.build import build_ranker
from heavy_ranker.export_graphs import with_gains_folded
from heavy_ranker.export_split import SplitHyFormer, with_split_mixers
from heavy_ranker.flops import count_flops
from heavy_ranker.rows import EvenRows

CASES = {
    "one layer": {"num_layers": 1},
    "two layers": {"num_layers": 2, "queries_per_sequence": 2},
    "one token": {"num_layers": 1, "query_source": "one_token"},
    "ensemble": {"backbones": ("masknet", "hyformer")},
}


def rankers(schema, config, randomised, changes):
    """A ranker with random weights, and its exported form."""
    torch.manual_seed(1)
    ranker = randomised(build_ranker(schema, msgspec.structs.replace(config.model, **changes)).eval())
    return ranker, with_split_mixers(with_gains_folded(ranker))


def score(ranker, requests, ads):
    """Logits of random features; the second request has empty histories."""
    generator = torch.Generator().manual_seed(2)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.tensor([1.0, 0.0], dtype=torch.float64).reshape(2, 1)[:requests]
    sequences = {
        name: (draw(requests, 4, events.project.in_features), mask.expand(requests, 4))
        for name, events in zip(ranker.sequence_names, ranker.events, strict=True)
    }
    widths = [tokens.in_dim for tokens in (ranker.request_tokens, ranker.ad_tokens, ranker.pair_tokens)]
    state = ranker.encode_request(draw(requests, widths[0]), sequences)
    flat = [draw(requests * ads, width) for width in widths[1:]]
    return ranker.score_ads(state, EvenRows(requests, ads), *flat)


@torch.no_grad()
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_equals_the_trained_ranker(schema, config, randomised, changes):
    trained, split = rankers(schema, config, randomised, changes)
    assert sum(isinstance(module, SplitHyFormer) for module in split.modules()) == 1
    assert not any(isinstance(module, SplitHyFormer) for module in trained.modules())
    wanted = score(copy.deepcopy(trained).double(), 2, 3)
    assert wanted.std() > 0.01
    torch.testing.assert_close(score(split.double(), 2, 3), wanted, rtol=1e-6, atol=1e-6)


def test_each_ad_costs_less_by_the_request_s_share_of_the_first_products(schema, config, randomised):
    trained, split = rankers(schema, config, randomised, {"num_layers": 1})
    mixer = trained.backbone.layers[0].mixer
    hidden, slice_dim = mixer.mixed_layer.gate.shape[2], config.model.token_dim // mixer.num_slices
    share = 2 * 2 * mixer.num_slices * trained.request_tokens.num_tokens * slice_dim * hidden  # gate and up
    before, after = count_flops(trained, schema), count_flops(split, schema)
    assert before.ad - after.ad == share
    assert after.request - before.request == share
