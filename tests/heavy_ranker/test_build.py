import msgspec
import pytest
import torch

from contracts.errors import ConfigError
from heavy_ranker.build import build_ranker, model_sides, resolve_groups


def replace_feature(schema, name, **changes):
    changed = msgspec.structs.replace(schema.features[name], **changes)
    return msgspec.structs.replace(schema, features=schema.features | {name: changed})


def test_groups_are_one_token_each_and_sides_never_mix(schema, sizes):
    groups = resolve_groups(schema, sizes)
    assert groups == {
        "query": {"group_0": ("country",), "group_1": ("user_ctr",)},
        "ad": {"group_0": ("ad_id",), "group_1": ("tags", "price")},
        "pair": {"group_0": ("seen",)},
    }


def test_labels_name_the_groups(schema, sizes):
    labelled = replace_feature(replace_feature(schema, "ad_id", label="identity"), "price", label="identity")
    assert resolve_groups(labelled, sizes)["ad"] == {"identity": ("price", "ad_id"), "group_0": ("tags",)}


def test_resolved_groups_resolve_to_themselves(schema, sizes):
    groups = resolve_groups(schema, sizes)
    assert resolve_groups(schema, msgspec.structs.replace(sizes, groups=groups)) == groups


def test_configured_groups_win_over_labels(schema, sizes):
    labelled = replace_feature(schema, "price", label="money")
    config = msgspec.structs.replace(sizes, groups={"ad": {"all": ("ad_id", "tags", "price")}})
    assert resolve_groups(labelled, config)["ad"] == {"all": ("ad_id", "tags", "price")}


def test_equal_seeds_build_equal_rankers(schema, sizes):
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build_ranker(schema, sizes).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_sides_of_the_model_follow_the_schema(schema):
    assert model_sides(schema) == ("query", "ad", "pair")
    without = {name: feature for name, feature in schema.features.items() if feature.side != "pair"}
    assert model_sides(msgspec.structs.replace(schema, features=without)) == ("query", "ad")


def test_a_side_of_nothing_but_sequences_is_refused(schema, sizes):
    features = {name: schema.features[name] for name in ("clicks", "ad_id")}
    with pytest.raises(ConfigError, match="expected at least one query feature that is no sequence"):
        build_ranker(msgspec.structs.replace(schema, features=features), sizes)


@pytest.mark.parametrize("name", ["num_heads", "num_slices", "product_heads"])
def test_sizes_that_do_not_divide_are_refused(schema, sizes, name):
    with pytest.raises(ConfigError, match=rf"model\.{name}: must divide token_dim=8, got 3"):
        build_ranker(schema, msgspec.structs.replace(sizes, **{name: 3}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_encoders": {"buys": "longer"}}, r"model\.sequence_encoders\.buys: .* \['clicks', 'views'\]"),
        ({"backbones": ("masknet",), "request_only": True}, r"model\.request_only: separates hyformer's tokens"),
        (
            {"token_split": "equal", "groups": {"ad": {"all": ("ad_id",)}}},
            r"model\.groups: expected none",
        ),
        ({"backbones": ()}, r"model\.backbones: expected one or more, each once, got \[\]"),
        ({"backbones": ("masknet", "masknet")}, r"model\.backbones: .*each once, got \['masknet', 'masknet'\]"),
        ({"backbones": ("rankmixer",), "token_dim": 4, "num_slices": 4}, r"model\.token_dim: .* at least 7, got 4"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(schema, sizes, changes, message):
    with pytest.raises(ConfigError, match=message):
        build_ranker(schema, msgspec.structs.replace(sizes, **changes))


def test_equal_pieces_cut_through_features(schema, sizes):
    equal = msgspec.structs.replace(sizes, token_split="equal", ad_tokens=3)
    ranker = build_ranker(schema, equal)
    assert resolve_groups(schema, equal) == {}
    assert [part.num_tokens for part in (ranker.request_tokens, ranker.ad_tokens, ranker.pair_tokens)] == [2, 3, 1]
    assert ranker.ad_tokens.columns.reshape(3, -1).tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 13]]


def test_queries_of_one_token_need_a_sequence(schema, sizes):
    features = {name: feature for name, feature in schema.features.items() if feature.kind != "sequence"}
    with pytest.raises(ConfigError, match=r"model\.query_source: one_token reads a pooled sequence"):
        build_ranker(
            msgspec.structs.replace(schema, features=features), msgspec.structs.replace(sizes, query_source="one_token")
        )
