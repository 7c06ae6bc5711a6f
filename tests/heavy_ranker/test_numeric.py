"""Dense values in bins: the formula, value by value, and whose columns a token then reads."""

import msgspec
import torch

from contracts.layout import side_layout
from heavy_ranker.build import build_ranker
from heavy_ranker.numeric import PiecewiseLinear, dense_columns
from heavy_ranker.presets import small
from heavy_ranker.rows import EvenRows


def test_equals_the_formula_value_by_value():
    numeric = PiecewiseLinear([0, 2], in_dim=3, num_bins=4)
    flat = torch.tensor([[-3.0, 9.0, 0.1], [0.5, 9.0, 3.0], [-1.0, 9.0, 1.0]])
    expected = []
    for row in flat.tolist():
        bins = [
            min(max((row[column] - (-1.0 + 0.5 * place)) / 0.5, 0.0), 1.0) for column in (0, 2) for place in range(4)
        ]
        expected.append(row + bins)
    torch.testing.assert_close(numeric(flat), torch.tensor(expected))


def test_columns_of_a_group_are_followed_by_their_bins():
    numeric = PiecewiseLinear([0, 2], in_dim=3, num_bins=2)
    assert numeric.with_bins([2, 1]) == [2, 1, 5, 6]
    assert numeric.sources() == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_a_ranker_reads_bins_where_asked(schema):
    """With the bins' weights at zero the ranker gives what it gives without bins."""
    config = small().model
    torch.manual_seed(0)
    plain = build_ranker(schema, config)
    binned = build_ranker(schema, msgspec.structs.replace(config, numeric_bins=3))
    weights = dict(plain.state_dict())
    for name in ("request_tokens", "ad_tokens", "pair_tokens"):
        ours, theirs = getattr(binned, name), getattr(plain, name)
        if ours is None:
            continue
        weight = torch.zeros_like(ours.weight)
        for token in range(ours.num_tokens):
            own = theirs.columns.reshape(-1, theirs.width)[token].tolist()
            here = ours.columns.reshape(-1, ours.width)[token].tolist()
            for at, column in enumerate(own):
                if column < theirs.in_dim:
                    weight[token, here.index(column)] = theirs.weight[token, at].detach()
        weights[f"{name}.weight"] = weight
    binned.load_state_dict(weights)
    sides = {side: side_layout(schema, side) for side in ("query", "ad", "pair")}
    flat = {side: torch.randn(4, layout.flat_dim(pool_sequences=False)) for side, layout in sides.items()}
    sequences = {
        sequence.name: (torch.randn(4, sequence.max_length, sequence.dim), torch.ones(4, sequence.max_length))
        for sequence in sides["query"].sequences
    }
    pair = flat["pair"] if plain.pair_tokens is not None else None
    logits = [
        ranker.score_ads(ranker.encode_request(flat["query"], sequences), EvenRows(4, 1), flat["ad"], pair)
        for ranker in (plain, binned)
    ]
    torch.testing.assert_close(logits[0], logits[1])
    assert dense_columns(sides["query"])
