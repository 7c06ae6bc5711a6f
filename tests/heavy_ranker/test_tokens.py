import numpy as np
import pytest
import torch

from contracts.errors import ConfigError
from contracts.layout import FlatSlice
from heavy_ranker.tokens import (
    GroupTokens,
    balanced_groups,
    configured_groups,
    equal_columns,
    group_columns,
    semantic_groups,
)

SLICES = (
    FlatSlice(name="age", start=0, width=1),
    FlatSlice(name="city", start=1, width=4),
    FlatSlice(name="genre", start=5, width=3),
    FlatSlice(name="image", start=8, width=6),
)


def test_tokens_equal_one_projection_a_feature(reference, randomised):
    groups = {"who": ("city", "age"), "what": ("image",), "kind": ("genre",)}
    tokens = randomised(GroupTokens(group_columns(SLICES, groups), in_dim=14, token_dim=5))
    flat = torch.randn(3, 14)
    weight, bias = reference.array(tokens.weight), reference.array(tokens.bias)
    for n, names in enumerate(groups.values()):
        expected = [reference.group_token(row, names, SLICES, weight[n], bias[n, 0]) for row in reference.array(flat)]
        np.testing.assert_allclose(reference.array(tokens(flat))[n], expected, atol=1e-5)


def test_padding_of_narrow_groups_learns_nothing():
    tokens = GroupTokens([[0], [1, 2, 3]], in_dim=4, token_dim=2)
    tokens(torch.randn(5, 4)).square().sum().backward()
    assert torch.equal(tokens.weight[0, 1:], torch.zeros(2, 2))
    assert torch.equal(tokens.weight.grad[0, 1:], torch.zeros(2, 2))


@pytest.mark.parametrize("columns", [[[0], []], [[0, 4]]])
def test_group_outside_the_input_is_refused(columns):
    with pytest.raises(ValueError, match=r"must read columns in 0\.\.3"):
        GroupTokens(columns, in_dim=4, token_dim=2)


def test_labels_come_first_and_the_rest_is_shared_out():
    groups = semantic_groups(SLICES, {"age": "profile", "city": "profile"}, num_tokens=3)
    assert groups == {"profile": ("age", "city"), "group_0": ("image",), "group_1": ("genre",)}


def test_labelled_features_need_no_further_group():
    assert semantic_groups(SLICES[:2], {"age": "a", "city": "a"}, num_tokens=4) == {"a": ("age", "city")}


def test_balanced_groups_are_near_equal_and_do_not_depend_on_order():
    groups = balanced_groups(SLICES, 2)
    assert groups == balanced_groups(SLICES[::-1], 2) == [("image", "age"), ("city", "genre")]


def test_more_groups_than_features_gives_one_each():
    assert len(balanced_groups(SLICES, 9)) == len(SLICES)


def test_configured_groups_are_kept():
    given = {"a": ["image", "age"], "b": ["city", "genre"]}
    assert configured_groups(SLICES, given, side="ad") == {"a": ("image", "age"), "b": ("city", "genre")}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": ["age", "city", "genre"]}, r"groups.ad: .*in no group: \['image'\]"),
        ({"a": ["age", "city", "genre", "image", "colour"]}, r"unknown: \['colour'\]"),
        ({"a": ["age", "city", "genre", "image"], "b": ["age"]}, r"in two groups: \['age'\]"),
        ({"a": ["age", "city", "genre", "image"], "b": []}, r"groups.ad.b: expected at least one feature"),
    ],
)
def test_configured_groups_are_checked(groups, message):
    with pytest.raises(ConfigError, match=message):
        configured_groups(SLICES, groups, side="ad")


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 14, 20])
def test_equal_pieces_cover_every_column_once_in_order(num_tokens):
    pieces = equal_columns(14, num_tokens)
    widths = [len(piece) for piece in pieces]
    assert [column for piece in pieces for column in piece] == list(range(14))
    assert len(pieces) <= num_tokens
    assert set(widths[:-1]) <= {widths[0]}
    assert 0 < widths[-1] <= widths[0]
