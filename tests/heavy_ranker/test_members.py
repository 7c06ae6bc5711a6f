"""A ranker with several members: each is a ranker of its own over shared tokens and experts."""

import msgspec
import pytest
import torch

from contracts.layout import side_layout
from heavy_ranker.build import build_ranker
from heavy_ranker.presets import small
from heavy_ranker.rows import EvenRows

MEMBERS, TASKS = 3, 3


@pytest.fixture
def config():
    return small().model


@pytest.fixture
def inputs(schema):
    sides = {side: side_layout(schema, side) for side in ("query", "ad", "pair")}
    flat = {side: torch.randn(4, layout.flat_dim(pool_sequences=False)) for side, layout in sides.items()}
    sequences = {
        sequence.name: (torch.randn(4, sequence.max_length, sequence.dim), torch.ones(4, sequence.max_length))
        for sequence in sides["query"].sequences
    }
    return flat["query"], sequences, flat["ad"], flat["pair"]


def _alone(weights, member, task_experts, shared_experts):
    """The weights of one member as those of a ranker without members."""
    own = slice(member * TASKS, (member + 1) * TASKS)
    found = {}
    for name, value in weights.items():
        if name in ("extraction.experts", "extraction.expert_bias"):
            first = shared_experts + member * TASKS * task_experts
            found[name] = torch.cat([value[:shared_experts], value[first : first + TASKS * task_experts]])
        elif name == "extraction.gates" or name.startswith("heads."):
            found[name] = value[own]
        else:
            found[name] = value
    return found


def test_each_member_is_a_ranker_alone(schema, config, inputs, randomised):
    query, sequences, ad, pair = inputs
    several = randomised(build_ranker(schema, msgspec.structs.replace(config, members=MEMBERS)))
    logits = several.member_logits(several.encode_request(query, sequences), EvenRows(4, 1), ad, pair)
    assert logits.shape == (4, MEMBERS, TASKS)
    for member in range(MEMBERS):
        one = build_ranker(schema, config)
        one.load_state_dict(_alone(several.state_dict(), member, config.task_experts, config.shared_experts))
        expected = one.score_ads(one.encode_request(query, sequences), EvenRows(4, 1), ad, pair)
        torch.testing.assert_close(logits[:, member], expected, rtol=1e-4, atol=1e-4)


def test_the_score_is_the_mean_probability(schema, config, inputs):
    query, sequences, ad, pair = inputs
    ranker = build_ranker(schema, msgspec.structs.replace(config, members=MEMBERS))
    state = ranker.encode_request(query, sequences)
    members = ranker.member_logits(state, EvenRows(4, 1), ad, pair).double()
    score = ranker.score_ads(state, EvenRows(4, 1), ad, pair).double()
    torch.testing.assert_close(torch.sigmoid(score), torch.sigmoid(members).mean(1), atol=1e-6, rtol=1e-5)
