"""The assembled two-tower: logits equal to the plain product of every pair, built from schema and configuration."""

from typing import Any

import msgspec
import pytest
import torch

from contracts.config import convert
from contracts.errors import ConfigError
from contracts.schema import FeatureSchema
from modeling.tables import dense_parameters
from towers import presets
from towers.build import build_two_tower
from towers.config import TowerConfig, TwoTowerConfig
from towers.two_tower import TwoTower


def test_logits_of_a_batch_equal_pair_by_pair(model: TwoTower, rows: Any) -> None:
    requests, ads = torch.tensor([0, 0, 3, 4, 2]), torch.tensor([6, 1, 1, 0, 2])
    logits = model(rows.tensors("query"), rows.tensors("ad"), requests, ads)
    for pair, (request, ad) in enumerate(zip(requests.tolist(), ads.tolist(), strict=True)):
        query = tuple(part[[request]] for part in rows.tensors("query"))
        pin = tuple(part[[ad]] for part in rows.tensors("ad"))
        alone = model(query, pin, torch.tensor([0]), torch.tensor([0]))
        torch.testing.assert_close(logits[pair : pair + 1], alone, rtol=1e-5, atol=1e-6)


def test_each_tower_runs_once_per_distinct_row(model: TwoTower, rows: Any) -> None:
    seen: dict[str, int] = {}
    hooks = [
        tower.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: len(inputs[0])}))
        for name, tower in (("query", model.query_tower), ("pin", model.pin_tower))
    ]
    pairs = torch.arange(35)
    model(rows.tensors("query"), rows.tensors("ad"), pairs // 7, pairs % 7)
    for hook in hooks:
        hook.remove()
    assert seen == {"query": 5, "pin": 7}


def test_both_towers_are_of_one_class(model: TwoTower) -> None:
    assert type(model.query_tower) is type(model.pin_tower)


def test_the_tables_train_in_the_backward_pass(schema: FeatureSchema, config: TwoTowerConfig, rows: Any) -> None:
    model = build_two_tower(schema, config)
    before = model.tables.weight("ad").clone()
    model(rows.tensors("query"), rows.tensors("ad"), torch.tensor([0]), torch.tensor([0])).sum().backward()
    assert not torch.equal(before, model.tables.weight("ad"))
    assert all(p.grad is not None for p in dense_parameters(model).values())


def test_equal_seeds_give_equal_weights(schema: FeatureSchema, config: TwoTowerConfig) -> None:
    first, second, third = (build_two_tower(schema, config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)


def test_pair_features_are_refused(schema: FeatureSchema, config: TwoTowerConfig) -> None:
    data = msgspec.to_builtins(schema)
    data["features"]["user_advertiser_clicks"] = {"side": "pair", "kind": "dense", "default": 0.0}
    with pytest.raises(ConfigError, match="features user_advertiser_clicks have side pair; a tower sees one side only"):
        build_two_tower(convert(data, FeatureSchema, source="schema"), config)


def test_a_schema_without_ad_features_is_refused(schema: FeatureSchema, config: TwoTowerConfig) -> None:
    data = msgspec.to_builtins(schema)
    data["features"] = {name: f for name, f in data["features"].items() if f["side"] == "query"}
    data["tables"].pop("topic")
    with pytest.raises(ConfigError, match="a two-tower needs features of side ad, the schema has none"):
        build_two_tower(convert(data, FeatureSchema, source="schema"), config)


@pytest.mark.parametrize("preset", [presets.standard, presets.shopping, presets.plain_mlp, presets.multi_domain])
def test_presets_build_and_survive_json(schema: FeatureSchema, preset: Any, rows: Any) -> None:
    config = preset()
    assert msgspec.json.decode(msgspec.json.encode(config), type=TwoTowerConfig) == config
    model = build_two_tower(schema, config).eval()
    domains = (torch.tensor([0, 1, 1, 0, 0]), torch.tensor([0, 1, 1, 0, 0, 1, 0])) if config.domains else None
    pairs = torch.tensor([0, 1])
    logits = model(rows.tensors("query"), rows.tensors("ad"), pairs, pairs, domains)
    assert logits.shape == (2, 2)
    assert torch.isfinite(logits).all()


def test_a_rank_above_the_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank: expected 1 to the width 4, got 5"):
        TowerConfig(
            width=4, num_experts=1, full_rank_layers=0, low_rank_layers=1, rank=5, hidden_dims=(), gate_hidden_dim=2
        )
