"""The conventional tower against its formula."""

from typing import Any

import pytest
import torch

from contracts.errors import ConfigError
from contracts.schema import FeatureSchema
from towers import presets
from towers.build import build_tower, build_two_tower
from towers.config import TowerConfig, TwoTowerConfig
from towers.two_tower import TwoTower


def test_the_tower_is_relu_layers_with_one_projection_a_head() -> None:
    tower = build_tower(TowerConfig(kind="mlp", width=8, hidden_dims=(6, 5)), 7, 2, 4, "query").eval()
    flat = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    (linear, norm, _), hidden, heads = tower.stem, tower.mixture.hidden, tower.heads
    x = torch.relu(torch.nn.functional.layer_norm(flat @ linear.weight.T + linear.bias, (8,), norm.weight, norm.bias))
    for layer in (hidden[0], hidden[2]):
        x = torch.relu(x @ layer.weight.T + layer.bias)
    x = torch.nn.functional.layer_norm(x, (5,))
    scale = heads.log_scale.exp()
    embedding = tower(flat)
    for head, projection in enumerate(heads.projections):
        projected = x @ projection.weight.T + projection.bias
        torch.testing.assert_close(embedding[:, head, :4], projected[:, :4] * scale[head])
        torch.testing.assert_close(embedding[:, head, 5], projected[:, 4])


def test_a_conventional_tower_has_no_experts() -> None:
    with pytest.raises(ConfigError, match="num_experts: expected 1 for kind mlp, got 4"):
        TowerConfig(kind="mlp", width=8, hidden_dims=(8,), num_experts=4)
    with pytest.raises(ConfigError, match="full_rank_layers: expected 0 for kind mlp, got 1"):
        TowerConfig(kind="mlp", width=8, hidden_dims=(8,), full_rank_layers=1)
    with pytest.raises(ConfigError, match="hidden_dims: expected a layer or more for kind mlp, got none"):
        TowerConfig(kind="mlp", width=8, hidden_dims=())


def _dense_weights(tower: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in tower.parameters())


@pytest.mark.parametrize("name", ["standard", "shopping"])
def test_the_baseline_is_about_as_large_as_what_it_is_compared_with(schema: FeatureSchema, name: str) -> None:
    """Weights that a row is multiplied with are half its FLOPs: each dense weight is used once a row."""
    sizes = {}
    for preset in (name, "plain_mlp"):
        config: TwoTowerConfig = getattr(presets, preset)()
        towers = [build_tower(tower, 300, 2, config.head_dim, "ad") for tower in (config.query, config.pin)]
        sizes[preset] = sum(map(_dense_weights, towers))
    assert 0.8 < sizes["plain_mlp"] / sizes[name] < 1.5


def test_heads_differ_though_their_representation_is_shared(schema: FeatureSchema, rows: Any) -> None:
    tower = TowerConfig(kind="mlp", width=8, hidden_dims=(8,), dropout=0.5)
    model: TwoTower = build_two_tower(schema, TwoTowerConfig(query=tower, pin=tower, head_dim=4)).eval()
    query, _ = model.embed(rows.tensors("query"), rows.tensors("ad"))
    assert not torch.allclose(query[:, 0], query[:, 1])
